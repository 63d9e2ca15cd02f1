"""The text of a picture: each frame of it, by a model that sees if there is one, by OCR if not.

Where the model can't say, OCR reads the frame, and a note tells why.
"""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.extraction import BadExtraction
from kappa.graph.ingest.read.errors import DocumentTooLarge
from kappa.graph.ingest.read.limits import Limits
from kappa.graph.ingest.read.parts import About, Part

if TYPE_CHECKING:
    from PIL import Image

FORMATS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/gif": "GIF",
    "image/bmp": "BMP",
    "image/tiff": "TIFF",
    "image/webp": "WEBP",
}

MOST_SIDE = 3_000
"""Points. Providers make larger pictures smaller themselves, or refuse them."""
MOST_BYTES = 3_500_000


def image_pages(data: bytes, media_type: str, limits: Limits) -> int:
    """How many pages OCR would have to read, if it may. The first is unpacked, to see that it is whole."""
    with _opened(data, media_type, limits) as image:
        frames = _frames(image, media_type, limits)
        image.load()
        return frames


def image_parts(data: bytes, limits: Limits, about: About) -> Iterator[Part]:
    with _opened(data, about.media_type, limits) as image:
        frames = _frames(image, about.media_type, limits)
        about.paged = frames > 1
        from PIL import Image, ImageOps

        for number in range(frames):
            image.seek(number)
            _check_points(image, limits)
            page = ImageOps.exif_transpose(image)
            if page.has_transparency_data:
                upright = page.convert("RGBA")
                page = Image.new("RGB", upright.size, "white")
                page.paste(upright, mask=upright.getchannel("A"))
                del upright
            elif page.mode != "RGB":
                page = page.convert("RGB")
            yield Part(_said(page, about, number + 1), number + 1, frames)


def _said(page: "Image.Image", about: About, number: int) -> str:
    if about.see is not None:
        try:
            return about.see(*_sent(page))
        except BadExtraction as fault:
            about.notes.append(f"page {number} was read by OCR: {fault}")
    import numpy as np

    about.ocr_pages += 1
    return about.ocr(np.ascontiguousarray(np.asarray(page)[:, :, ::-1]))


def _sent(page: "Image.Image") -> tuple[bytes, str]:
    """A frame as every provider takes it: neither too wide nor too long, and nothing lost if that can be."""
    if max(page.size) > MOST_SIDE:
        page = page.copy()
        page.thumbnail((MOST_SIDE, MOST_SIDE))
    out = io.BytesIO()
    page.save(out, "PNG")
    if out.tell() <= MOST_BYTES:
        return out.getvalue(), "image/png"
    out = io.BytesIO()
    page.save(out, "JPEG", quality=85)
    return out.getvalue(), "image/jpeg"


def _opened(data: bytes, media_type: str, limits: Limits) -> "Image.Image":
    try:
        from PIL import Image
    except ImportError as fault:
        raise MissingExtra("pictures need pillow, which the extra kappa[ingest] brings") from fault
    try:
        return Image.open(io.BytesIO(data), formats=[FORMATS[media_type]])
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as fault:
        raise DocumentTooLarge(f"it has more than {limits.pixels:,} points") from fault


def _frames(image: "Image.Image", media_type: str, limits: Limits) -> int:
    # Many frames of a GIF or WebP are a film; those of a TIFF are pages.
    frames: int = getattr(image, "n_frames", 1) if media_type == "image/tiff" else 1
    limits.check_pages(frames)
    if frames > limits.ocr_pages:
        raise DocumentTooLarge(f"OCR would have to read {frames:,} pages of it, and reads at most {limits.ocr_pages:,}")
    _check_points(image, limits)
    return frames


def _check_points(image: "Image.Image", limits: Limits) -> None:
    if image.width * image.height > limits.pixels:
        raise DocumentTooLarge(
            f"it has {image.width:,} × {image.height:,} points, and at most {limits.pixels:,} are read"
        )
