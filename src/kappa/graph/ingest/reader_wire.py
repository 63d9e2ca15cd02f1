"""The messages between a server and the process that reads a document for it.

They are JSON, with bytes beside it where there are any. Nothing is unpickled: whoever wrote a document that took over
its reader would else take over the server as well.
"""

import json
import struct
from collections.abc import Callable
from typing import Any, cast

SIZES = struct.Struct(">IQ")
MAX_HEAD = 1 << 20

OUT_OF_MEMORY = 77
"""How a reader exits that needs more memory than it may have."""

Head = dict[str, Any]
Receive = Callable[[int], bytearray]
"""Exactly so many bytes."""


class BadMessage(Exception):
    """What came is no message, or is larger than it may be."""


def pack(head: Head, blob: bytes = b"") -> tuple[bytes, bytes]:
    """What to send for a message, one after the other."""
    text = json.dumps(head).encode()
    return SIZES.pack(len(text), len(blob)) + text, blob


def unpack(receive: Receive, max_blob: int) -> tuple[Head, bytearray]:
    head_size, blob_size = SIZES.unpack(receive(SIZES.size))
    if head_size > MAX_HEAD or blob_size > max_blob:
        raise BadMessage(f"a message of {head_size + blob_size:,} bytes")
    try:
        head = json.loads(receive(head_size))
    except (ValueError, RecursionError) as error:
        raise BadMessage(str(error)) from error
    if not isinstance(head, dict):
        raise BadMessage("a message without names")
    return cast(Head, head), receive(blob_size)
