"""A zip container that can't be larger than it may be.

What its directory says about sizes is not believed: bytes are counted as they are unpacked, all parts together.
"""

import io
import zipfile
from collections.abc import Iterator

from kappa.graph.ingest.read.errors import BrokenDocument, DocumentTooLarge, EncryptedDocument
from kappa.graph.ingest.read.limits import Limits

_PIECE = 1 << 16


class Archive:
    """The files of a zip, by name."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        # Each file has an entry with this signature; they are counted before objects are made of them.
        if data.count(b"PK\x01\x02") > limits.entries:
            raise DocumentTooLarge(f"there are more than {limits.entries:,} files packed into it")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except MemoryError:
            raise
        except Exception as fault:
            raise BrokenDocument("its zip container is damaged or cut off") from fault
        self._limits = limits
        self._left = limits.unpacked

    def __contains__(self, name: str) -> bool:
        return name in self._zip.NameToInfo

    @property
    def names(self) -> list[str]:
        return self._zip.namelist()

    def read(self, name: str) -> bytes:
        """One file, whole."""
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """One file, piece by piece."""
        info = self._zip.NameToInfo.get(name)
        if info is None:
            raise BrokenDocument(f"{name!r} is missing in it")
        if info.flag_bits & 0x1:
            raise EncryptedDocument("it is encrypted, and needs a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # The others give any amount for one piece of input; neither DOCX nor EPUB allows them.
            raise BrokenDocument(f"{name!r} in it is packed in a way that its format doesn't know")
        try:
            with self._zip.open(info) as packed:
                while piece := packed.read(_PIECE):
                    self._left -= len(piece)
                    if self._left < 0:
                        raise DocumentTooLarge(f"it unpacks to more than {self._limits.unpacked:,} bytes")
                    yield piece
        except (DocumentTooLarge, GeneratorExit, MemoryError):
            raise
        except Exception as fault:
            raise BrokenDocument(f"{name!r} in it is damaged") from fault
