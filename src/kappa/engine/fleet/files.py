"""The files of a tool run on their way: inputs down, artifacts and logs up, none of them whole in memory.

For the threads in which tool runs are followed. What breaks is begun anew until the run is over.
"""

import hashlib
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel

from kappa.engine.errors import JobFailed, LeaseLost
from kappa.engine.fleet.link import (
    ANSWER_WITHIN,
    CONNECT_WITHIN,
    NotDone,
    Pace,
    Place,
    Refused,
    Unreachable,
    read,
    reason,
    refusal,
)
from kappa.engine.tools import ContractBroken

T = TypeVar("T")

PIECE = 256 * 1024
LOG_PIECE = 64 * 1024
LOOK_EVERY = 0.5

Held = tuple[int, int]


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


class Kept(BaseModel):
    """How much of a log is kept."""

    length: int


class Taken(BaseModel):
    """An artifact as the server stored it."""

    size: int
    sha256: str


class Files:
    """One worker's way to the files of its tasks."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client = httpx2.Client(
            headers=place.headers,
            trust_env=not place.direct,
            timeout=httpx2.Timeout(ANSWER_WITHIN, connect=CONNECT_WITHIN),
        )

    def close(self) -> None:
        self._client.close()

    def fetch(self, held: Held, name: str, into: Path, still_wanted: Callable[[], None]) -> None:
        """An input file, into a directory."""
        if Path(name).name != name:
            raise JobFailed(f"an input file can't be called {name!r} here", retry=False)

        def take() -> None:
            address = self._address(held, f"inputs/{quote(name, safe='')}")
            with self._client.stream("GET", address, params=self._whose(held)) as response:
                if not response.is_success:
                    response.read()
                    raise refusal(response)
                with (into / name).open("wb") as file:
                    for piece in response.iter_bytes(PIECE):
                        still_wanted()
                        file.write(piece)

        self._patiently(take, still_wanted)

    def put_artifact(self, held: Held, path: str, source: int, size: int, still_wanted: Callable[[], None]) -> str:
        """Upload what is read from a file; gives its SHA-256."""

        def pieces(digest: Digest) -> Generator[bytes]:
            at = 0
            while at < size:
                still_wanted()
                piece = os.pread(source, min(PIECE, size - at), at)
                at += len(piece)
                if not piece:
                    raise ContractBroken("an artifact shrank while it was collected")
                if at == size and os.pread(source, 1, size):
                    raise ContractBroken("an artifact grew while it was collected")
                digest.update(piece)
                yield piece

        def put() -> str:
            digest = hashlib.sha256()
            response = self._client.put(
                self._address(held, f"artifacts/{quote(path)}"),
                params={**self._whose(held), "size": size},
                content=pieces(digest),
                headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
            )
            if (taken := read(response, Taken)).sha256 != digest.hexdigest():
                raise Unreachable(f"the artifact {path!r} arrived as something else")
            return taken.sha256

        return self._patiently(put, still_wanted)

    def put_log(self, held: Held, stream: str, at: int, content: bytes, still_wanted: Callable[[], None]) -> int:
        """The next piece of a log, or nothing to hear what is there; gives how much is kept."""

        def put() -> int:
            response = self._client.put(
                self._address(held, f"logs/{stream}"), params={**self._whose(held), "at": at}, content=content
            )
            return read(response, Kept).length

        return self._patiently(put, still_wanted)

    def put_exit(self, held: Held, code: int, still_wanted: Callable[[], None]) -> None:
        """The exit code, also of a run that failed."""

        def put() -> None:
            response = self._client.put(self._address(held, f"exit/{code}"), params=self._whose(held))
            if not response.is_success:
                raise refusal(response)

        self._patiently(put, still_wanted)

    def _address(self, held: Held, what: str) -> str:
        return self._place.address(f"tasks/{held[0]}/{what}")

    def _whose(self, held: Held) -> dict[str, str | int]:
        return {"worker": self._place.worker, "token": held[1]}

    def _patiently(self, do: Callable[[], T], still_wanted: Callable[[], None]) -> T:
        pace = Pace()
        while True:
            still_wanted()
            try:
                try:
                    return do()
                except httpx2.TransportError as error:
                    raise Unreachable(reason(error)) from None
            except NotDone as error:
                if isinstance(error, Refused) and error.lost:
                    raise LeaseLost(str(error)) from None
                if not error.passes:
                    raise
                until = time.monotonic() + pace.after(error)
            while (left := until - time.monotonic()) > 0:
                still_wanted()
                time.sleep(min(left, LOOK_EVERY))
