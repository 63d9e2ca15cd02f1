"""The text of a Word document (DOCX), read straight from its XML.

In the order in which it stands: paragraphs, tables (cells of a row by tabs), text boxes, tracked insertions, then
footnotes and endnotes. What was deleted, and field codes, are left out. A file with a DOCTYPE, which might declare
entities, is refused.
"""

import re
from collections.abc import Iterator
from xml.parsers import expat

from kappa.graph.ingest.read.archive import Archive
from kappa.graph.ingest.read.errors import BrokenDocument, DocumentTooLarge
from kappa.graph.ingest.read.limits import Limits
from kappa.graph.ingest.read.parts import About, Part

_WORD = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main ",
    "http://purl.oclc.org/ooxml/wordprocessingml/main ",
)
_BLANK_LINES = re.compile(r"\n{3,}")
_RELATION = "/relationships/officeDocument"
_SIGNS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "‑", "softHyphen": ""}


def docx_parts(data: bytes, limits: Limits, about: About) -> Iterator[Part]:
    archive = Archive(data, limits)
    main = main_part(archive, limits)
    if "docProps/core.xml" in archive:
        about.title = _Title(limits).run(archive, "docProps/core.xml")
    folder = main.rpartition("/")[0]
    names = [main] + [name for notes in ("footnotes", "endnotes") if (name := f"{folder}/{notes}.xml") in archive]
    for number, name in enumerate(names, 1):
        yield Part(_BLANK_LINES.sub("\n\n", _Body(limits).run(archive, name)), number, len(names))


def main_part(archive: Archive, limits: Limits) -> str:
    """The file that holds the document, as the container's relations name it; "" if it is of another program."""
    if "_rels/.rels" in archive and (name := _Main(limits).run(archive, "_rels/.rels")):
        return name
    return "word/document.xml" if "word/document.xml" in archive else ""


class _Reader:
    """One XML file, element by element."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.out: list[str] = []
        self.size = 0
        self.depth = 0

    def run(self, archive: Archive, name: str) -> str:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self.text
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            for piece in archive.pieces(name):
                parser.Parse(piece, False)
            parser.Parse(b"", True)
        except expat.ExpatError as fault:
            raise BrokenDocument(f"{name!r} in it is no valid XML") from fault
        return "".join(self.out)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > self.limits.depth:
            raise DocumentTooLarge(f"its elements are nested more than {self.limits.depth:,} deep")
        self.start(name, attributes)

    def _end(self, name: str) -> None:
        self.depth -= 1
        self.end(name)

    def _doctype(self, *_: object) -> None:
        raise BrokenDocument("its XML declares entities, which no Word document does")

    def add(self, text: str) -> None:
        self.size += len(text)
        self.limits.check_characters(self.size)
        self.out.append(text)

    def start(self, name: str, attributes: dict[str, str]) -> None: ...

    def end(self, name: str) -> None: ...

    def text(self, data: str) -> None: ...


class _Body(_Reader):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.shown = False
        # What has a second form for older programs is read in the first.
        self.fallback = 0
        self.cells: list[int] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name.endswith(" Fallback"):
            self.fallback += 1
        word = _word(name)
        if self.fallback or not word:
            return
        if word == "t":
            self.shown = True
        elif word == "txbxContent":
            self.add("\n")
        elif word == "tr":
            self.cells.append(0)
        elif word == "tc" and self.cells:
            self.cells[-1] += 1
            if self.cells[-1] > 1:
                self._trim()
                self.add("\t")
        elif word in _SIGNS and not (word == "tab" and any("val" in key for key in attributes)):
            # A tab with a value sets a stop; it is none in the text.
            self.add(_SIGNS[word])

    def end(self, name: str) -> None:
        if name.endswith(" Fallback"):
            self.fallback -= 1
        word = _word(name)
        if self.fallback or not word:
            return
        if word == "t":
            self.shown = False
        elif word == "p":
            self.add("\n" if self.cells else "\n\n")
        elif word == "tr" and self.cells:
            self.cells.pop()
            self._trim()
            self.add("\n")
        elif word == "tbl" and not self.cells:
            self.add("\n")

    def text(self, data: str) -> None:
        if self.shown:
            self.add(data)

    def _trim(self) -> None:
        """The last paragraph of a cell doesn't end its line."""
        if self.out and self.out[-1] == "\n":
            self.out.pop()


class _Title(_Reader):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.inside = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.inside = name == "http://purl.org/dc/elements/1.1/ title"

    def end(self, name: str) -> None:
        self.inside = False

    def text(self, data: str) -> None:
        if self.inside:
            self.add(data)


class _Main(_Reader):
    def start(self, name: str, attributes: dict[str, str]) -> None:
        if attributes.get("Type", "").endswith(_RELATION) and not self.out:
            target = attributes.get("Target", "").lstrip("/")
            if target.startswith("word/"):
                self.add(target)


def _word(name: str) -> str:
    for space in _WORD:
        if name.startswith(space):
            return name[len(space) :]
    return ""
