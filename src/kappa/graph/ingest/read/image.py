"""The text of a picture: each frame of it, by OCR."""

import io
from collections.abc import Iterator

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.read.errors import DocumentTooLarge
from kappa.graph.ingest.read.limits import Limits
from kappa.graph.ingest.read.ocr import picture_text
from kappa.graph.ingest.read.parts import About, Part

FORMATS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/gif": "GIF",
    "image/bmp": "BMP",
    "image/tiff": "TIFF",
    "image/webp": "WEBP",
}


def image_parts(data: bytes, limits: Limits, about: About) -> Iterator[Part]:
    try:
        import numpy as np
        from PIL import Image, ImageOps
    except ImportError as fault:
        raise MissingExtra("pictures need pillow and numpy: pip install 'kappa[ingest]'") from fault
    try:
        opened = Image.open(io.BytesIO(data), formats=[FORMATS[about.media_type]])
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as fault:
        raise DocumentTooLarge(f"it has more than {limits.pixels:,} points") from fault
    with opened as image:
        # Many frames of a GIF or WebP are a film; those of a TIFF are pages.
        frames: int = getattr(image, "n_frames", 1) if about.media_type == "image/tiff" else 1
        limits.check_pages(frames)
        if frames > limits.ocr_pages:
            raise DocumentTooLarge(
                f"OCR would have to read {frames:,} pages of it, and reads at most {limits.ocr_pages:,}"
            )
        about.paged = frames > 1
        for number in range(frames):
            image.seek(number)
            if image.width * image.height > limits.pixels:
                raise DocumentTooLarge(
                    f"it has {image.width:,} × {image.height:,} points, and at most {limits.pixels:,} are read"
                )
            upright = ImageOps.exif_transpose(image).convert("RGBA")
            page = Image.new("RGB", upright.size, "white")
            page.paste(upright, mask=upright.getchannel("A"))
            about.ocr_pages += 1
            yield Part(picture_text(np.ascontiguousarray(np.asarray(page)[:, :, ::-1])), number + 1, frames)
