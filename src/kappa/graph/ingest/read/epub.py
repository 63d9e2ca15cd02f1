"""The text of an EPUB: the XHTML files of its spine, in order. A zip and some XML: no library is needed."""

import posixpath
import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import unquote

from kappa.graph.ingest.read.archive import Archive
from kappa.graph.ingest.read.decode import decode
from kappa.graph.ingest.read.errors import BrokenDocument, EncryptedDocument
from kappa.graph.ingest.read.html import html_text
from kappa.graph.ingest.read.limits import Limits
from kappa.graph.ingest.read.parts import About, Part

CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_ELEMENT = re.compile(r"<(?:[\w.-]+:)?([\w.-]+)\b([^<>]*)>")
_ATTRIBUTE = re.compile(r"([\w:.-]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_TITLE = re.compile(r"<(?:[\w.-]+:)?title\b[^<>]*>([^<]*)<")


def epub_parts(data: bytes, limits: Limits, about: About) -> Iterator[Part]:
    archive = Archive(data, limits)
    package = next((a.get("full-path", "") for a in _elements(archive, CONTAINER, "rootfile")), "")
    if not package:
        raise BrokenDocument("its container names no package file")
    source = decode(archive.read(package))
    if found := _TITLE.search(source):
        about.title = unescape(found[1])
    files = {item.get("id", ""): item for item in _found(source, "item")}
    folder = posixpath.dirname(package)
    spine: list[str] = []
    for reference in _found(source, "itemref"):
        item = files.get(reference.get("idref", ""), {})
        if item.get("media-type", "") in ("application/xhtml+xml", "text/html"):
            spine.append(posixpath.normpath(posixpath.join(folder, unquote(item.get("href", "").partition("#")[0]))))
    if not spine:
        raise BrokenDocument("its package file names no text")
    limits.check_pages(len(spine), "parts")
    if _ENCRYPTION in archive:
        # Fonts are often veiled in this way; it matters only if the text is.
        hidden = {unquote(a.get("URI", "")) for a in _elements(archive, _ENCRYPTION, "CipherReference")}
        if hidden & set(spine):
            raise EncryptedDocument("it is protected by DRM, and can't be read without its key")
    for number, name in enumerate(spine, 1):
        yield Part(html_text(decode(archive.read(name)), xml=True)[0], number, len(spine))


def _elements(archive: Archive, name: str, element: str) -> Iterator[dict[str, str]]:
    return _found(decode(archive.read(name)), element)


def _found(source: str, element: str) -> Iterator[dict[str, str]]:
    """The attributes of each element of a name. These files are flat lists, and are read as far as they are valid."""
    for found in _ELEMENT.finditer(source):
        if found[1] == element:
            yield {key: unescape(one or two) for key, one, two in _ATTRIBUTE.findall(found[2])}
