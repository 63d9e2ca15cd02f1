"""Small files of every format, made on the spot."""

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

CONTAINER = (
    '<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">'
    '<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
    "</container>"
)


def pdf(pages: Sequence[Sequence[str]], title: str = "", extra: Mapping[str, bytes] | None = None) -> bytes:
    """A PDF with lines of Latin text on its pages. `extra` goes into the trailer."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, lines in enumerate(pages):
        shown = b"".join(b"(%b) Tj T*\n" % _escaped(line) for line in lines)
        content = b"BT /F1 12 Tf 14 TL 50 780 Td\n%bET" % shown
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> "
            b"/Contents %d 0 R >>" % (5 + 2 * number)
        )
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content))
    objects.append(b"<< /Title (%b) >>" % _escaped(title))
    more = b" ".join(b"/%b %b" % (key.encode(), value) for key, value in (extra or {}).items())
    return _with_places(objects, b"/Info %d 0 R %b" % (len(objects), more))


def hostile_pdf(times: int, megabytes: int = 100) -> bytes:
    """A kilobyte that says to show a stream of so many blanks, packed three times over, so many times."""
    packing = zlib.compressobj(9)
    stream = b"".join(packing.compress(bytes(1 << 20)) for _ in range(megabytes)) + packing.flush()
    for _ in range(2):
        stream = zlib.compress(stream, 9)
    return _with_places(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents [%b] >>" % b" ".join([b"4 0 R"] * times),
            b"<< /Length %d /Filter [%b] >>\nstream\n%b\nendstream"
            % (len(stream), b" ".join([b"/FlateDecode"] * 3), stream),
        ]
    )


def _with_places(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """A PDF of these objects; the first is its root."""
    out = bytearray(b"%PDF-1.4\n")
    places: list[int] = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    at = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R %b >>\n" % (len(objects) + 1, trailer)
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % at)


def _escaped(line: str) -> bytes:
    return line.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")


def encrypted_pdf() -> bytes:
    """A PDF that wants a password: its keys are those of nobody's."""
    locks = b"<< /Filter /Standard /V 1 /R 2 /P -4 /O <%b> /U <%b> >>" % (b"ab" * 32, b"cd" * 32)
    return pdf([["hidden"]], extra={"Encrypt": locks, "ID": b"[<00><00>]"})


def zipped(files: Mapping[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def epub(chapters: Sequence[str], title: str = "A book", more: Mapping[str, str | bytes] | None = None) -> bytes:
    """A book of XHTML bodies."""
    items = "".join(
        f'<item id="c{number}" href="text/chapter%20{number}.xhtml" media-type="application/xhtml+xml"/>'
        for number in range(len(chapters))
    )
    spine = "".join(f'<itemref idref="c{number}"/>' for number in range(len(chapters)))
    package = (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<metadata><dc:title>{title}</dc:title></metadata><manifest>{items}"
        f'<item id="css" href="a.css" media-type="text/css"/></manifest><spine>{spine}</spine></package>'
    )
    files: dict[str, str | bytes] = {"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER}
    files["OEBPS/book.opf"] = package
    for number, body in enumerate(chapters):
        files[f"OEBPS/text/chapter {number}.xhtml"] = (
            '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"><head>'
            f'<title/><script src="x.js"/></head><body>{body}</body></html>'
        )
    return zipped(files | dict(more or {}))


def raw_docx(body: str, before: str = "", more: Mapping[str, str | bytes] | None = None) -> bytes:
    """A DOCX with this body, and this before its root element."""
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    files: dict[str, str | bytes] = {
        "[Content_Types].xml": "<Types/>",
        "word/document.xml": f"<?xml version='1.0'?>{before}<w:document {space}><w:body>{body}</w:body></w:document>",
    }
    return zipped(files | dict(more or {}))


def picture(lines: Sequence[str], kind: str = "PNG", size: tuple[int, int] = (1000, 240)) -> bytes:
    made = io.BytesIO()
    drawn(lines, size).save(made, kind)
    return made.getvalue()


def drawn(lines: Sequence[str], size: tuple[int, int] = (1000, 240)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=36)
    for number, line in enumerate(lines):
        draw.text((30, 30 + 56 * number), line, fill="black", font=font)
    return image
