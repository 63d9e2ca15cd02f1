"""Named SQL statements, kept in `.sql` files beside the modules that use them.

A block begins with `-- name: some_name` and ends where the next one begins. A module binds each block to a
constant while it is imported, so that a missing block fails at import and not at three in the morning:

    sql = queries.beside(__file__)
    CLAIM = sql["claim"]

A `Query` is the authority on its own parameters: they are written `%(name)s`, as psycopg wants them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kappa.pg.errors import QueryNotFound

T = TypeVar("T")

Row = tuple[Any, ...]
"""What psycopg gives for a row."""

Answer = Callable[[], T]
"""What a statement that was sent comes to. To call it is to wait for it, in a pipeline for all before it as well."""

_HEADER = re.compile(r"^--\s*name:\s*(?P<name>.*?)\s*$")
_NAME = re.compile(r"^[a-z][a-z0-9_]*$")
_PARAMETER = re.compile(r"%\((?P<name>\w+)\)[sbt]|%%")


@dataclass(frozen=True, slots=True)
class Query:
    """One named statement."""

    name: str
    source: Path
    sql: bytes
    """What psycopg's `execute` takes. Bytes, because it rightly refuses a `str` that isn't a literal."""

    parameters: tuple[str, ...]
    """The names of the parameters, in order of first use."""

    key: bytes = field(init=False)
    """A name for the prepared statement."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"kappa_{self.source.stem}_{self.name}".encode())

    @property
    def text(self) -> str:
        return self.sql.decode()

    def numbered(self) -> str:
        """The statement with `$1`, `$2`, … in place of names, as `PREPARE` takes it."""
        place = {name: f"${at}" for at, name in enumerate(self.parameters, start=1)}
        return _PARAMETER.sub(lambda found: place[found["name"]] if found["name"] else "%", self.text)


class Queries(Mapping[str, Query]):
    """The named blocks of one file."""

    def __init__(self, source: Path, text: str) -> None:
        self.source = source
        self._blocks = _parse(source, text)

    def __getitem__(self, name: str) -> Query:
        try:
            return self._blocks[name]
        except KeyError:
            known = ", ".join(self._blocks) or "none"
            raise QueryNotFound(f"{self.source} has no block named {name!r} (it has: {known})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)


def beside(module_file: str) -> Queries:
    """The blocks of the `.sql` file with the same stem as a module: `beside(__file__)`."""
    return load(Path(module_file).with_suffix(".sql"))


def load(source: Path) -> Queries:
    """The blocks of one file."""
    try:
        return Queries(source, source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise QueryNotFound(f"there is no query file {source}") from None


def _parse(source: Path, text: str) -> dict[str, Query]:
    blocks: dict[str, Query] = {}
    name: str | None = None
    lines: list[str] = []

    def close() -> None:
        if name is None:
            if any(line.strip() and not line.lstrip().startswith("--") for line in lines):
                raise QueryNotFound(f"{source} has SQL before its first '-- name:' line")
            return
        body = "\n".join(lines).strip().removesuffix(";").rstrip()
        if not body:
            raise QueryNotFound(f"{source}: block {name!r} is empty")
        named = (found["name"] for found in _PARAMETER.finditer(body))
        parameters = tuple(dict.fromkeys(parameter for parameter in named if parameter))
        blocks[name] = Query(name=name, source=source, sql=body.encode(), parameters=parameters)

    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header is None:
            lines.append(line)
            continue
        close()
        name, lines = str(header["name"]), []
        if not _NAME.match(name):
            raise QueryNotFound(f"{source}:{number}: {name!r} is not a name for a block (a-z, 0-9 and _)")
        if name in blocks:
            raise QueryNotFound(f"{source}:{number}: a second block named {name!r}")
    close()
    return blocks
