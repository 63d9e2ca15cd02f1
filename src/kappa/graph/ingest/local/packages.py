"""The packages of the extra `ingest`, imported when they are first needed."""

import importlib
from types import ModuleType

from kappa.graph.errors import MissingExtra


def need(name: str) -> ModuleType:
    """A module of the extra, or one line that says how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise MissingExtra(
            f"the package {missing!r} is not installed, which the provider 'local' needs: "
            "the extra kappa[ingest] brings it"
        ) from error
