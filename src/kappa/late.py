"""Public names of a package that are looked for when they are first used.

Whoever needs a word of the vocabulary, as a command line that speaks HTTP does, loads no driver and no event loop.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any


def names(package: str, public: Collection[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """The package's `__getattr__`: its public names are in these modules, which are looked into one after the other."""

    def find(name: str) -> Any:
        if name in public:
            for home in homes:
                if name in (there := vars(import_module(f"{package}.{home}"))):
                    setattr(sys.modules[package], name, there[name])
                    return there[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
