"""`kg mcp`: the server, for an agent that starts it."""

import asyncio
import signal
import sys

from kappa.app import settings
from kappa.app.cli import show


def mcp() -> None:
    """Speak the Model Context Protocol with an agent that starts this command.

    It is a client of the server that `kg up` runs on this machine, or of the one that KAPPA_SERVER and KAPPA_TOKEN
    name, and may do what its token may do.

    Example: {"mcpServers": {"kappa": {"command": "kg", "args": ["mcp"]}}}
    """
    from kappa.app.mcp import stdio  # it takes half a second to load, and no other command needs it

    if sys.stdin.isatty():
        show.say("kg mcp speaks JSON-RPC with the agent that started it; ctrl-C ends it, --help has a configuration")
    # Standard input is read by a thread that nothing can interrupt, so ctrl-C ends the process and not the loop.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(stdio.serve(settings.load()))
