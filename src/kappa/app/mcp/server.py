"""The MCP server itself, whatever it speaks through: what it offers, and its errors in one clear line each."""

import inspect
import json
import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from kappa.app.api.wording import what_is_wrong
from kappa.pg import KappaError

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)


class Server(MCPServer[Any]):
    """An MCP server whose refusals are the API's, as the API words them."""

    def __init__(self, instructions: str) -> None:
        # The SDK would give the process a log handler and a level of its own, unless there is a handler already.
        root, none = logging.getLogger(), logging.NullHandler()
        root.addHandler(none)
        try:
            super().__init__("kappa", title="Kappa", instructions=instructions, version=version("kappa"),
                             subscriptions=False)  # fmt: skip
        finally:
            root.removeHandler(none)

    def offer(self, tool: Callable[..., Any], hints: ToolAnnotations) -> None:
        """A coroutine function as a tool: its name, docstring and types are what agents see."""
        self.add_tool(tool, description=inspect.getdoc(tool), annotations=hints, structured_output=True)

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
        known = next((tool.input_schema["properties"] for tool in await self.list_tools() if tool.name == name), None)
        if known is not None and (unknown := sorted(arguments.keys() - known.keys())):
            # The SDK drops them without a word, and the agent believes that they counted.
            raise ToolError(f"{name} has no {', '.join(unknown)}: it takes {', '.join(known) or 'nothing'}")
        try:
            return _compact(await super().call_tool(name, arguments, context))
        except ToolError as error:
            if (line := _line(error.__cause__)) is None:
                raise
            raise ToolError(line) from error.__cause__

    async def read_resource(self, uri: Any, context: Context[Any, Any] | None = None) -> Any:
        try:
            return await super().read_resource(uri, context)
        except ResourceError as error:
            if (line := _line(error.__cause__)) is None:
                raise
            raise ResourceError(line) from error.__cause__


def _compact(result: Any) -> Any:
    """The same answer in fewer characters: agents pay for each, and the SDK indents what they read."""
    if isinstance(result, CallToolResult) and result.structured_content is not None:
        said = json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))
        return result.model_copy(update={"content": [TextContent(type="text", text=said)]})
    return result


def _line(cause: BaseException | None) -> str | None:
    """What to say of a failure that was foreseen."""
    if isinstance(cause, KappaError):
        return " ".join(str(cause).split())
    if isinstance(cause, ToolError):
        return str(cause)
    if isinstance(cause, ValidationError):
        return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {what_is_wrong(fault)}" for fault in cause.errors())
    return None
