"""MCP by standard input and output: an agent starts this process and speaks with it alone."""

import httpx2

from kappa.app import remote
from kappa.app.mcp import offers
from kappa.app.mcp.api import Api
from kappa.app.settings import Settings


async def serve(settings: Settings) -> None:
    """Serve until standard input ends. A server that isn't there, or a token that doesn't count, is an error."""
    place = remote.find(settings)
    async with httpx2.AsyncClient(
        base_url=place.url, headers=place.headers, timeout=remote.TIMEOUT, trust_env=not place.local
    ) as client:
        with remote.reaching(place):
            known = await client.get("/me")
        if known.status_code != 403:  # a token whose scopes leave its account out is a good one
            remote.check(known)
        await offers.build(Api(lambda: client)).run_stdio_async()
