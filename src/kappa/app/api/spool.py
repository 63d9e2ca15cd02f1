"""The body of a request as a file: whole for as long as it is used, and never there in part."""

import tempfile
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request


@asynccontextmanager
async def spooled(request: Request, directory: Path, limit: int) -> AsyncGenerator[Path]:
    """The body, however large, piece by piece on the disk. One over the limit is refused as soon as that is known."""
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > limit:
        raise _too_large(limit)
    async with kept(request.stream(), directory, limit) as path:
        yield path


@asynccontextmanager
async def kept(pieces: AsyncIterable[bytes], directory: Path, limit: int) -> AsyncGenerator[Path]:
    """Pieces as one file, which is gone when the block ends, however it ends."""
    file = await run_sync(partial(tempfile.NamedTemporaryFile, dir=directory))
    try:
        size = 0
        try:
            async for piece in pieces:
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                await run_sync(file.write, piece)
            await run_sync(file.flush)
        except ClientDisconnect:
            raise HTTPException(400, "the caller went away in the middle of it") from None
        except OSError as error:
            raise HTTPException(503, f"it can't be kept here: {error.strerror}") from None
        yield Path(file.name)
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(file.close)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"a document has {limit:,} bytes at most", {"Connection": "close"})
