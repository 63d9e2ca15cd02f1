"""The text of an HTML page, or of an XHTML file of a book.

The page is read as a row of tags and texts, without building the tree that a browser would: 20 kB of unclosed tags make
a tree of a million nodes, and it grows with the square. Here every character is looked at once. Scripts, styles and
templates are left out; everything else that has text is kept, menus as well.
"""

import re
from html import unescape

_NAME = re.compile(r"</?[a-zA-Z]")
# Attributes as the standard has them: a quote counts only after "=". Possessive, so that nothing is tried twice.
_TAG = re.compile(
    r"<(/?)([a-zA-Z][^\s/>]*+)"
    r"((?:[\s/]++|[^\s/>=][^\s/>=]*+|=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s>\"'][^\s>]*+|))*+)>"
)
_COMMENT_END = re.compile(r"--!?>")
_BLANKS = re.compile(r"[ \t\n\r\f\v]+")
# What stands in these is no markup up to their own end.
_END_OF = {
    name: re.compile(rf"(?i)</{name}(?=[\s/>])")
    for name in ("iframe", "noembed", "noframes", "plaintext", "script", "style", "textarea", "title", "xmp")
}
_SHOWN_RAW = frozenset({"plaintext", "textarea", "xmp"})
_UNSHOWN = frozenset({"datalist", "template"})
_PARAGRAPHS = re.compile(
    "article|aside|blockquote|body|center|dialog|dl|fieldset|figure|footer|form|h[1-6]|header|hr|main|nav|ol|p|pre|section|"
    "table|ul"
)
_LINES = re.compile(
    "address|br|caption|dd|details|div|dt|figcaption|legend|li|menu|optgroup|option|summary|tbody|tfoot|thead|tr"
)
_BREAKS = ("", "\n", "\n\n")


def html_text(page: str, xml: bool = False) -> tuple[str, str]:
    """The text and the title. In XML, `<a/>` is a whole element, and there are CDATA sections."""
    reader = _Page(page, xml)
    reader.run()
    return "".join(reader.out).strip("\n"), reader.title


class _Page:
    """A page on the way from its first character to its last."""

    def __init__(self, page: str, xml: bool) -> None:
        self.page = page
        self.xml = xml
        self.place = 0
        self.out: list[str] = []
        self.title = ""
        # What is to come before the next text: ends of lines, or else a blank.
        self.breaks = 0
        self.blank = ""
        # How deep the place is in elements whose text is kept as it is, or not shown.
        self.kept = 0
        self.unshown = 0

    def run(self) -> None:
        page = self.page
        while (mark := page.find("<", self.place)) >= 0:
            self._add(unescape(page[self.place : mark]))
            if page.startswith("<!--", mark):
                # An empty comment may be closed by the marks that opened it.
                empty = page.startswith((">", "->"), mark + 4)
                end = _COMMENT_END.search(page, mark + (2 if empty else 4))
                self.place = end.end() if end else len(page)
            elif self.xml and page.startswith("<![CDATA[", mark):
                end = page.find("]]>", mark)
                self._add(page[mark + 9 : end if end >= 0 else len(page)])
                self.place = end + 3 if end >= 0 else len(page)
            elif _NAME.match(page, mark):
                self._tag(mark)
            elif page.startswith(("<!", "<?", "</"), mark):
                self.place = page.find(">", mark) + 1 or len(page)
            else:
                self._add("<")
                self.place = mark + 1
        self._add(unescape(page[self.place :]))

    def _tag(self, mark: int) -> None:
        tag = _TAG.match(self.page, mark)
        if tag is None:
            # A tag that doesn't end takes the rest with it, as in a browser.
            self.place = len(self.page)
            return
        self.place = tag.end()
        name, closes = tag[2].lower(), bool(tag[1])
        whole = self.xml and tag[3].endswith("/")
        step = 0 if whole else -1 if closes else 1
        if name in _UNSHOWN:
            self.unshown = max(0, self.unshown + step)
        elif name in _END_OF and step > 0:
            self._raw(name)
        elif _PARAGRAPHS.fullmatch(name):
            self.breaks = 2
            if name == "pre":
                self.kept = max(0, self.kept + step)
        elif _LINES.fullmatch(name):
            self.breaks = max(self.breaks, 1)
        elif name in ("td", "th") and not closes:
            self.blank = "\t"

    def _raw(self, name: str) -> None:
        end = _END_OF[name].search(self.page, self.place)
        stop = end.start() if end else len(self.page)
        inside, self.place = self.page[self.place : stop], stop
        if name == "title":
            self.title = self.title or unescape(inside)
        elif name in _SHOWN_RAW:
            self.breaks = max(self.breaks, 1)
            self.kept += 1
            self._add(unescape(inside) if name == "textarea" else inside)
            self.kept -= 1
            self.breaks = max(self.breaks, 1)

    def _add(self, text: str) -> None:
        if self.unshown:
            return
        if self.kept:
            core = text.lstrip("\n") if self.breaks else text
            after = ""
        else:
            text = _BLANKS.sub(" ", text)
            if text.startswith(" "):
                self.blank = self.blank or " "
            core = text.strip(" ")
            after = " " if text.endswith(" ") else ""
        if core:
            if self.out:
                self.out.append(_BREAKS[self.breaks] or self.blank)
            self.out.append(core)
            self.breaks, self.blank = 0, after
