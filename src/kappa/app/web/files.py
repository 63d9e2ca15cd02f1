"""The files that pages refer to, read once: each is asked for by its name and what is in it, and kept by browsers."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
PREFIX = "/ui/static/"


@dataclass(frozen=True, slots=True)
class File:
    """What is sent, and what it is."""

    content: bytes
    media_type: str
    digest: str


def load() -> dict[str, File]:
    """Every static file by its name below `static`."""
    return dict(_below(files("kappa.app.web") / "static", ""))


def _below(place: Traversable, prefix: str) -> "list[tuple[str, File]]":
    found: list[tuple[str, File]] = []
    for one in place.iterdir():
        if one.is_dir():
            found += _below(one, f"{prefix}{one.name}/")
        elif (media_type := TYPES.get(one.name.rsplit(".", 1)[-1])) is not None:
            content = one.read_bytes()
            found.append((prefix + one.name, File(content, media_type, hashlib.sha256(content).hexdigest()[:16])))
    return found


def address(known: dict[str, File], name: str) -> str:
    """Where a page finds a file; another one once its content is another."""
    return f"{PREFIX}{name}?{known[name].digest}"
