"""Text out of pictures, by RapidOCR. Its models are inside its package and checked by digest: nothing is fetched.

One engine serves the process, one picture at a time, on a few cores: each thread of its three models takes memory.
"""

import os
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.weights import RAPIDOCR, verify

if TYPE_CHECKING:
    from kappa.graph.ingest.read.parts import Picture

MAX_CORES = 4
_one_at_a_time = threading.Lock()


def picture_text(picture: "Picture") -> str:
    """The text of a picture (rows of blue, green, red), row by row; a gap between rows is a blank line."""
    with _one_at_a_time:
        found = _engine()(picture)
    if found.txts is None:
        return ""
    boxes = [
        _Box(min(y for _, y in points), max(y for _, y in points), min(x for x, _ in points), text)
        for points, text in zip(found.boxes.tolist(), found.txts, strict=True)
    ]
    return _laid_out(boxes)


class _Box:
    def __init__(self, top: float, bottom: float, left: float, text: str) -> None:
        self.top, self.bottom, self.left, self.text = top, bottom, left, text

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def _laid_out(boxes: list[_Box]) -> str:
    rows: list[list[_Box]] = []
    for box in sorted(boxes, key=lambda box: (box.middle, box.left)):
        if rows and box.middle < rows[-1][0].bottom and box.top < rows[-1][0].middle:
            rows[-1].append(box)
        else:
            rows.append([box])
    out: list[str] = []
    for number, row in enumerate(rows):
        if number:
            before = rows[number - 1][0]
            out.append("\n\n" if row[0].top - before.bottom > before.bottom - before.top else "\n")
        out.append(" ".join(box.text for box in sorted(row, key=lambda box: box.left)))
    return "".join(out)


@cache
def _engine() -> Any:
    try:
        import cv2
        import rapidocr
    except ImportError as fault:
        raise MissingExtra("pictures need rapidocr, which the extra kappa[ingest] brings") from fault
    models = Path(rapidocr.__file__).parent / "models"
    verify(models, RAPIDOCR, "rapidocr")
    # Each by its path: of a model that it has to find itself, rapidocr would fetch another copy where it misses one.
    detect, recognise, turn = (str(models / name) for name in RAPIDOCR)
    cores = min(os.cpu_count() or 1, MAX_CORES)
    cv2.setNumThreads(cores)
    return rapidocr.RapidOCR(
        params={
            "Global.log_level": "error",
            "EngineConfig.onnxruntime.intra_op_num_threads": cores,
            "Det.model_path": detect,
            "Rec.model_path": recognise,
            "Cls.model_path": turn,
        }
    )
