"""Reading: every format gives its text, and whatever is wrong comes out as one clear error of ours."""

import io
import random
import subprocess
import sys
import threading
import unicodedata
import zipfile
from collections.abc import Callable

import docx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappa.graph import BadQuestion, MissingExtra
from kappa.graph.ingest.read import (
    BrokenDocument,
    DocumentTooLarge,
    EmptyDocument,
    EncryptedDocument,
    Limits,
    ReadError,
    UnknownFormat,
    read,
)
from kappa.graph.ingest.read.characters import uniform
from tests.graph.ingest import made

NO_OCR = Limits(ocr_pages=0)
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


def word_document() -> bytes:
    document = docx.Document()
    document.core_properties.title = "Of otters"
    document.add_heading("Otters", 1)
    paragraph = document.add_paragraph("They live in ")
    paragraph.add_run("rivers").bold = True
    paragraph.add_run(".\nA line\tand a tab.")
    document.add_paragraph("")
    table = document.add_table(2, 2)
    for row, column, text in ((0, 0, "animal"), (0, 1, "food"), (1, 0, "otter"), (1, 1, "fish")):
        table.cell(row, column).text = text
    document.add_paragraph("The end.")
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


PDF = made.pdf([["Otters live in rivers.", "They eat fish."], ["The second page."]], "Of otters")
EPUB = made.epub(["<h1>One</h1><p>First &amp; foremost.</p>", "<p>Second<br/>line.</p>"])
SAMPLES: dict[str, Callable[[], bytes]] = {
    "text": lambda: "Plain words, with ümlauts.\n".encode() * 20,
    "markdown": lambda: b"# Head\n\nSome **bold** words and a [link](x).\n\n- one\n- two\n",
    "html": lambda: b"<!doctype html><title>T</title><p>Some <b>words</b>.</p><table><tr><td>1<td>2</table>",
    "pdf": lambda: PDF,
    "docx": word_document,
    "epub": lambda: EPUB,
    "image": lambda: made.picture(["x"], size=(60, 60)),
}


def test_plain_text_stays_as_it_is() -> None:
    text = "Some text,\n\n  with blanks and # signs.\n"
    found = read(text.encode(), "any.bin")
    assert (found.text, found.media_type, found.title, found.pages) == (text, "text/plain", None, ())


def test_markdown_becomes_what_its_reader_sees() -> None:
    source = (
        "---\nlayout: x\n---\n# The *Head*\n\nSome **bold** [link](http://x.y) and `code`\nsoft.\n\n"
        "- one\n- two\n  - three\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n\ny = 2\n```\n\n"
        "<div>Raw <b>HTML</b></div>\n\n![A picture](x.png)\n"
    )
    found = read(source.encode())
    assert found.media_type == "text/markdown"
    assert found.title == "The Head"
    assert found.text == (
        "The Head\n\nSome bold link and code\nsoft.\n\none\ntwo\nthree\n\na\tb\n1\t2\n\n"
        "x = 1\n\ny = 2\n\nRaw HTML\n\nA picture"
    )


def test_a_name_decides_only_whether_a_text_is_markdown() -> None:
    assert read(b"Just *words*.", "a.md").text == "Just words."
    assert read(b"Just *words*.", "a.txt").text == "Just *words*."
    assert read(PDF, "a.md").media_type == "application/pdf"
    assert read(b"Just words.", "a.pdf").media_type == "text/plain"
    assert read(b"# a comment\nkey: value\n- x\n").media_type == "text/plain"


def test_longer_markdown_keeps_its_marks() -> None:
    assert read(b"Just *words*.", "a.md", Limits(markdown_characters=5)).text == "Just *words*."


def test_html_becomes_the_text_that_it_shows() -> None:
    page = """<!-- first --><!DOCTYPE html><html><head><title>A &amp; b</title><style>p {}</style></head>
    <body class='x>y'>
    <h1>Head</h1><p>Some <b>bold</b>,
      <i>it</i>.<script>if (a<b) "<p>no</p>"</script><p>Next<br>line<ul><li>one<li>two</ul>
    <table><tr><td>1<td>2<tr><td>3</table><pre>  keep
      this</pre><template>hidden <b>so</b></template>x < y &copy;
    <a title="a > b" href=x>link</a><textarea>&lt;t&gt;</textarea></html>"""
    found = read(page.encode())
    assert (found.media_type, found.title) == ("text/html", "A & b")
    assert found.text == (
        "Head\n\nSome bold, it.\n\nNext\nline\n\none\ntwo\n\n1\t2\n3\n\n  keep\n      this\n\nx < y © link\n<t>"
    )


@pytest.mark.parametrize(
    "unit", ["<div>", "<b>", "<a ", "<!--", "<", "</", "&amp", "<font a=1><p>", "<p a='", "<?", "<title>", "<pre>"]
)
def test_no_html_is_slow(unit: str) -> None:
    """What takes the square of its length takes longer than a test may."""
    page = "<html><p>Words." + "".join(f"{unit}{n}" for n in range(100_000))
    assert read(page.encode()).text.startswith("Words.")


def test_no_head_of_a_text_is_slow() -> None:
    assert read(b"<!--a-->" * 1_000_000 + b"text").media_type == "text/plain"


def test_a_pdf_gives_its_pages() -> None:
    found = read(PDF)
    assert (found.media_type, found.title, found.ocr_pages) == ("application/pdf", "Of otters", 0)
    assert found.text == "Otters live in rivers.\nThey eat fish.\n\nThe second page."
    assert [found.text[start:][:3] for start in found.pages] == ["Ott", "The"]


def test_a_pdf_joins_hyphenated_words_and_sentences_across_pages() -> None:
    found = read(made.pdf([["Otters are inter-", "esting and"], [], ["live long."]]))
    assert found.text == "Otters are interesting and\nlive long."
    assert len(found.pages) == 3


def test_a_docx_gives_paragraphs_tables_and_notes() -> None:
    found = read(word_document())
    assert (found.media_type, found.title) == (DOCX, "Of otters")
    assert found.text == "Otters\n\nThey live in rivers.\nA line\tand a tab.\n\nanimal\tfood\notter\tfish\n\nThe end."


def test_a_docx_keeps_insertions_and_drops_deletions_and_field_codes() -> None:
    body = (
        "<w:p><w:r><w:t>Kept</w:t></w:r><w:ins><w:r><w:t> inserted</w:t></w:r></w:ins>"
        "<w:del><w:r><w:delText> gone</w:delText></w:r></w:del><w:r><w:instrText> PAGE</w:instrText></w:r>"
        "<w:hyperlink><w:r><w:t> link</w:t></w:r></w:hyperlink></w:p>"
    )
    assert read(made.raw_docx(body)).text == "Kept inserted link"


def test_a_text_box_of_a_docx_begins_a_line() -> None:
    box = "<w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent>"
    assert read(made.raw_docx(f"<w:p><w:r><w:t>Text</w:t></w:r><w:r>{box}</w:r></w:p>")).text.strip() == "Text\nbox"


def test_an_epub_gives_its_spine_in_order() -> None:
    found = read(EPUB)
    assert (found.media_type, found.title) == ("application/epub+zip", "A book")
    assert found.text == "One\n\nFirst & foremost.\n\nSecond\nline."


def test_a_picture_is_read_by_ocr() -> None:
    found = read(made.picture(["Otters live in rivers.", "They eat fish."]))
    assert (found.media_type, found.ocr_pages) == ("image/png", 1)
    assert found.text == "Otters live in rivers.\nThey eat fish."


def test_a_scanned_page_of_a_pdf_is_read_by_ocr() -> None:
    scan = made.picture(["A scanned page says hello."], "PDF")
    found = read(scan)
    assert (found.text, found.media_type, found.ocr_pages) == ("A scanned page says hello.", "application/pdf", 1)
    with pytest.raises(EmptyDocument):
        read(scan, limits=NO_OCR)


def test_pages_of_a_tiff_are_bounded() -> None:
    out = io.BytesIO()
    page = made.drawn(["x"], (50, 50))
    page.save(out, "TIFF", save_all=True, append_images=[page] * 4)
    with pytest.raises(DocumentTooLarge, match="5 pages of it"):
        read(out.getvalue(), limits=Limits(ocr_pages=3))


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Käse und Größe.", "utf-8"),
        ("Käse und Größe.", "utf-8-sig"),
        ("Käse und Größe.", "utf-16"),
        ("Plain words.", "utf-16-le"),
        ("Plain words.", "utf-16-be"),
        ("Käse und Größe.", "utf-32"),
        ("Just one café.", "cp1252"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.", "cp1251"),
        ("日本語のテキストです。これは文章です。", "shift_jis"),
    ],
)
def test_texts_are_read_in_their_encoding(text: str, encoding: str) -> None:
    assert read(text.encode(encoding)).text == text


def test_a_page_is_read_in_the_encoding_that_it_names() -> None:
    page = '<html><meta charset="iso-8859-2"><p>Zażółć gęślą jaźń</p>'
    assert read(page.encode("iso-8859-2")).text == "Zażółć gęślą jaźń"


def test_characters_are_made_uniform_once() -> None:
    found = read("a\0b\r\nc\rd\u2028e\u0301 \x07\ufefff\tg".encode())
    assert found.text == "ab\nc\nd\né f\tg"


@settings(deadline=None)
@given(st.text())
def test_uniform_characters_stay(text: str) -> None:
    once = uniform(text)
    assert uniform(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not {"\0", "\r", "\x0c", "\ufeff"} & set(once)
    assert once.encode().decode() == once


def test_endless_marks_on_a_letter_are_not_slow() -> None:
    read(("a" + "\u0316\u0301" * 200_000).encode())


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", EmptyDocument, "no bytes"),
        (b" \n\t ", EmptyDocument, "no text"),
        (b"<html><script>x</script>", EmptyDocument, "no text"),
        (b"\0" * 100, UnknownFormat, "binary data"),
        (random.Random(1).randbytes(10_000), UnknownFormat, "binary data"),
        (made.encrypted_pdf(), EncryptedDocument, "password"),
        (b"%PDF-1.7\nnothing", BrokenDocument, "no valid PDF"),
        (PDF[:60], BrokenDocument, "no valid PDF"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), EncryptedDocument, "password"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 500, UnknownFormat, "older Office"),
        (b"{\\rtf1 x}", UnknownFormat, "RTF"),
        (b"\x1f\x8b\x08\0\0\0", UnknownFormat, "gzip"),
        (made.zipped({"a.txt": "x"}), UnknownFormat, "zip archive"),
        (made.zipped({"[Content_Types].xml": "", "xl/workbook.xml": ""}), UnknownFormat, "Excel"),
        (made.zipped({"mimetype": "application/vnd.oasis.opendocument.text"}), UnknownFormat, "OpenDocument"),
        (EPUB[:-30], BrokenDocument, "zip container"),
        (made.zipped({"META-INF/container.xml": "<x/>"}), BrokenDocument, "no package"),
        (made.zipped({"META-INF/container.xml": made.CONTAINER}), BrokenDocument, "'OEBPS/book.opf' is missing"),
        (made.raw_docx("<w:p>"), BrokenDocument, "no valid XML"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 50, BrokenDocument, "damaged"),
        (made.picture(["x"])[:200], BrokenDocument, "damaged"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(data: bytes, error: type[ReadError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        read(data, "a file\n.x")
    assert str(caught.value).startswith("a file .x: ")
    assert "\n" not in str(caught.value)


def test_a_book_under_drm_is_encrypted_and_veiled_fonts_are_not() -> None:
    hidden = '<encryption><EncryptedData><CipherReference URI="OEBPS/{}"/></EncryptedData></encryption>'
    fonts = made.epub(["<p>Words.</p>"], more={"META-INF/encryption.xml": hidden.format("a.otf")})
    assert read(fonts).text == "Words."
    with pytest.raises(EncryptedDocument, match="DRM"):
        read(made.epub(["<p>Words.</p>"], more={"META-INF/encryption.xml": hidden.format("text/chapter%200.xhtml")}))


def test_a_zip_with_a_password_is_encrypted() -> None:
    data = bytearray(made.raw_docx("<w:p/>"))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data[at + offset] |= 1
    with pytest.raises(EncryptedDocument, match="password"):
        read(bytes(data))


def test_bombs_are_refused() -> None:
    zeros = "<w:p/>" * 2_000_000
    with pytest.raises(DocumentTooLarge, match="unpacks to more"):
        read(made.raw_docx(zeros), limits=Limits(unpacked=1_000_000))
    with pytest.raises(DocumentTooLarge, match="unpacks to more"):
        read(made.epub(["<p>" + "x" * 3_000_000]), limits=Limits(unpacked=1_000_000))
    with pytest.raises(DocumentTooLarge, match="more than 10 files"):
        read(made.epub(["<p>x</p>"] * 10), limits=Limits(entries=10))
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
    with pytest.raises(BrokenDocument, match="entities"):
        read(made.raw_docx("<w:p><w:r><w:t>&b;</w:t></w:r></w:p>", before=laughs))
    with pytest.raises(DocumentTooLarge, match="nested"):
        read(made.raw_docx("<w:p>" * 1000 + "</w:p>" * 1000))
    with pytest.raises(BrokenDocument, match="packed"):
        read(made.zipped({"META-INF/container.xml": made.CONTAINER, "OEBPS/book.opf": "x"}, zipfile.ZIP_LZMA))


def test_what_is_over_a_limit_is_refused() -> None:
    with pytest.raises(DocumentTooLarge, match="11 bytes, and at most 10"):
        read(b"x" * 11, limits=Limits(bytes=10))
    with pytest.raises(DocumentTooLarge, match="more than 10 characters"):
        read(b"x" * 11, limits=Limits(characters=10))
    for data in (PDF, EPUB, word_document()):
        with pytest.raises(DocumentTooLarge, match="more than 10 characters"):
            read(data, limits=Limits(characters=10))
    with pytest.raises(DocumentTooLarge, match="2 pages"):
        read(PDF, limits=Limits(pages=1))
    with pytest.raises(DocumentTooLarge, match="2 parts"):
        read(EPUB, limits=Limits(pages=1))
    with pytest.raises(DocumentTooLarge, match="1,000 × 240 points"):
        read(made.picture(["x"]), limits=Limits(pixels=1000))
    with pytest.raises(BadQuestion, match="-1 pages"):
        Limits(pages=-1)


@pytest.mark.parametrize("kind", [kind for kind in SAMPLES if kind != "image"])
def test_garbage_gives_a_text_or_an_error_of_ours(kind: str) -> None:
    chance = random.Random(7)
    whole = SAMPLES[kind]()
    for number in range(150):
        data = bytearray(whole)
        if number % 3 == 0:
            del data[chance.randrange(len(data)) :]
        for _ in range(chance.choice((0, 1, 3, 30))):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        if number % 5 == 0:
            at = chance.randrange(len(data) + 1)
            data[at:at] = chance.randbytes(20)
        _read_or_refuse(bytes(data))


def test_a_damaged_picture_gives_an_error_of_ours() -> None:
    chance = random.Random(7)
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        whole = made.picture(["x"], kind, (60, 60))
        for _ in range(10):
            data = bytearray(whole[: chance.randrange(8, len(whole))])
            data[chance.randrange(8, len(data) + 1) - 1] ^= 0xFF
            _read_or_refuse(bytes(data))


def _read_or_refuse(data: bytes) -> None:
    outcomes: list[str] = []
    for _ in range(2):
        try:
            outcomes.append(read(data, limits=Limits(ocr_pages=1, pixels=1_000_000)).text)
        except ReadError as fault:
            outcomes.append(str(fault))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("kind", SAMPLES)
def test_reading_twice_is_reading_once(kind: str) -> None:
    data = SAMPLES[kind]()
    if kind == "image":
        data = made.picture(["Again and again."])
    assert read(data) == read(data)


def test_progress_is_told_and_can_end_the_reading() -> None:
    told: list[tuple[int, int]] = []
    read(PDF, on_part=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        read(PDF, on_part=stop)


def test_many_threads_read_pdfs_at_once() -> None:
    expected, found = read(PDF), []
    threads = [threading.Thread(target=lambda: found.extend(read(PDF) for _ in range(20))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 120


@pytest.mark.parametrize(("package", "kind"), [("pypdfium2", "pdf"), ("markdown_it", "markdown"), ("PIL", "image")])
def test_a_missing_library_is_named_with_its_extra(package: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = SAMPLES[kind]()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"the extra kappa\[ingest\]"):
        read(data)
    assert read(b"Plain text is read.").text == "Plain text is read."


def test_reading_imports_no_library_before_it_needs_one() -> None:
    program = (
        "import sys; from kappa.graph.ingest.read import read; read(b'text'); import kappa.graph.ingest.chunk; "
        "names = ('numpy', 'PIL', 'rapidocr', 'pypdfium2', 'markdown_it', 'charset_normalizer'); "
        "print([name for name in names if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
