"""The text of a picture: each frame of it, by OCR."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.read.errors import DocumentTooLarge
from kappa.graph.ingest.read.limits import Limits
from kappa.graph.ingest.read.ocr import picture_text
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
        import numpy as np
        from PIL import Image, ImageOps

        for number in range(frames):
            image.seek(number)
            _check_points(image, limits)
            upright = ImageOps.exif_transpose(image).convert("RGBA")
            page = Image.new("RGB", upright.size, "white")
            page.paste(upright, mask=upright.getchannel("A"))
            about.ocr_pages += 1
            yield Part(picture_text(np.ascontiguousarray(np.asarray(page)[:, :, ::-1])), number + 1, frames)


def _opened(data: bytes, media_type: str, limits: Limits) -> "Image.Image":
    try:
        from PIL import Image
    except ImportError as fault:
        raise MissingExtra("pictures need pillow: pip install 'kappa[ingest]'") from fault
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
