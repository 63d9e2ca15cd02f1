"""Checks the rules of docs/threading.md that can be checked without running anything: `python tools/loop_rules.py`.

What it finds in the code: middleware that is not pure ASGI; routes, dependencies, pages and error handlers that are no
coroutines; calls in a coroutine that block its loop, also by another function of the same module. And components that
the page's map doesn't name, or names although they don't exist. What blocks in another module, and what computes for
long, is found when it runs (`tests/app/test_event_loop.py`).
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "kappa"
PAGE = ROOT / "docs" / "threading.md"

LIFESPAN = frozenset({"app.serve.Server.run", "app.services.open_services"})
STREAMS = frozenset({"StreamingResponse", "FileResponse", "EventSourceResponse"})
ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \| (?P<marks>(?:\[(?:LOOP|THREAD|STREAM)\] ?)+)\|", re.MULTILINE)

BLOCKING_CALLS = frozenset({
    "open", "input", "time.sleep", "os.system", "os.popen", "os.waitpid", "socket.create_connection", "sqlite3.connect",
    "socket.getaddrinfo", "socket.gethostbyname", "psycopg.connect", "psycopg.Connection.connect",
    "psycopg_pool.ConnectionPool", "concurrent.futures.wait",
    *(f"{library}.{name}" for library in ("httpx", "httpx2")
      for name in ("get", "post", "put", "patch", "delete", "head", "request", "stream", "Client")),
})  # fmt: skip
BLOCKING_MODULES = ("requests.", "urllib.request.", "urllib3.", "subprocess.", "shutil.", "tempfile.", "docker.")
BLOCKING_METHODS = frozenset({
    "read_text", "read_bytes", "write_text", "write_bytes", "is_file", "is_dir", "iterdir", "mkdir", "rmdir", "rglob",
    "unlink", "touch", "stat",
})  # fmt: skip
"""Of paths, whatever the variable is called."""
WAITS = frozenset({"open", "result", "acquire", "wait", "join", "get"})
"""Of files, futures, locks, events, threads and queues for threads. Those for coroutines are awaited, or handed on."""
LOOKED_AT = frozenset({
    # Tasks that are done: they are asked for what they gave.
    "app.api.jobs: news.result", "app.api.scraping: reading.task.result", "app.api.scraping: task.result",
    "app.serve: working.result", "app.usecases.graph: answer.result",
    # Held for an assignment; and no file.
    "app.lanes: self._lock", "app.serve: self._door.open",
})  # fmt: skip
"""Calls and locks in coroutines that look as if they waited, and don't."""
BLOCKING_BLOCKS = frozenset({"connection", "transaction", "connect"})
"""In `with`, where a pool for coroutines has `async with`."""


class Module(ast.NodeVisitor):
    """What one module has for the map, and what it does against the rules."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        self.faults: list[str] = []
        self.asgi: set[str] = set()
        self.groups: set[str] = set()
        self.streams: set[str] = set()
        self._imported: dict[str, str] = {}
        self._within: list[str] = []
        self._is_app = self.name.startswith("app.")
        self._coroutine = False
        self._awaited: set[ast.AST] = set()
        """Calls whose coroutine is awaited, or handed to another call."""
        self._class = ""
        # Which functions of this module call which, as `name` or `self.name`, and which of them block.
        self._calls: list[tuple[str, str, bool, ast.Call]] = []
        self._blocking: dict[str, str] = {}
        self.visit(ast.parse(path.read_text()))
        self._follow()

    def _fault(self, node: ast.AST, what: str) -> None:
        self.faults.append(f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {what}")

    def _place(self) -> str:
        return ".".join([self.name, *self._within])

    def _function_name(self) -> str:
        """As it is called: a method by its class, a function within another one by its own name."""
        name = self._within[-1]
        return f"{self._class}.{name}" if self._within[-2:-1] == [self._class] else name

    def _called(self, node: ast.expr) -> str:
        """A name as it was imported: `sleep` after `from time import sleep` is `time.sleep`."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._called(node.value)}.{node.attr}"
        return ""

    def visit_Import(self, node: ast.Import) -> None:
        for one in node.names:
            first = one.name.partition(".")[0]
            self._imported[one.asname or first] = one.name if one.asname else first

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for one in node.names:
            self._imported[one.asname or one.name] = f"{node.module}.{one.name}"
        if any(one.name == "BaseHTTPMiddleware" for one in node.names):
            self._fault(node, "BaseHTTPMiddleware: middleware is pure ASGI")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within.append(node.name)
        for one in node.body:
            if isinstance(one, ast.AsyncFunctionDef | ast.FunctionDef) and one.name == "__call__":
                names = [each.arg for each in one.args.args]
                if names == ["self", "scope", "receive", "send"]:
                    self.asgi.add(self._place())
        if any(self._called(base).endswith("BaseHTTPMiddleware") for base in node.bases):
            self._fault(node, f"{node.name} is a BaseHTTPMiddleware: middleware is pure ASGI")
        outer, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = outer
        self._within.pop()

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, *, coroutine: bool) -> None:
        for one in node.decorator_list:
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "middleware":
                self._fault(node, f"@….middleware on {node.name}: it becomes a BaseHTTPMiddleware")
        # Decorators run where the function is made.
        self._awaited |= set(node.decorator_list)
        before, self._coroutine = self._coroutine, coroutine
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()
        self._coroutine = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node, coroutine=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node, coroutine=True)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        before, self._coroutine = self._coroutine, False
        self.generic_visit(node)
        self._coroutine = before

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            called = item.context_expr
            method = called.func.attr if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) else ""
            if self._coroutine and method in BLOCKING_BLOCKS:
                self._fault(node, f"`with ….{method}()` in a coroutine waits on its loop: `async with`")
            name = ast.unparse(called)
            is_lock = isinstance(called, ast.Name | ast.Attribute) and name.lower().endswith("lock")
            if self._coroutine and is_lock and self._is_app and f"{self.name}: {name}" not in LOOKED_AT:
                self._fault(node, f"`with {name}` in a coroutine waits on its loop: `async with`, of a lock of anyio's")
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        self._awaited |= {one for one in ast.walk(node.value) if isinstance(one, ast.Call)}
        self.generic_visit(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        for item in node.items:
            self._awaited |= {one for one in ast.walk(item.context_expr) if isinstance(one, ast.Call)}
        self.generic_visit(node)

    def _waits(self, node: ast.Call) -> bool:
        """Whether it looks like a call of something for threads that waits."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in WAITS or node in self._awaited:
            return False
        if f"{self.name}: {ast.unparse(node.func)}" in LOOKED_AT:
            return False
        match node.func.attr:
            case "join":  # a text joins one thing that is no number
                return not node.args or (isinstance(node.args[0], ast.Constant) and node.args[0].value is not None)
            case "get":  # a mapping is asked for a key, a context variable is a constant
                return not node.args and not ast.unparse(node.func.value).rpartition(".")[2].isupper()
            case _:
                return True

    def visit_Call(self, node: ast.Call) -> None:
        called = self._called(node.func)
        last = called.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if last in ("Routes", "Pages") and not self._within:
            self.groups.add(self.name)
        if last in STREAMS or (last == "stream" and called.startswith("request.")):
            self.streams.add(self._place())
        if last == "add_middleware":
            self._fault(node, "add_middleware: `application.build` puts middleware around the routes, pure ASGI")
        self._awaited |= {one for one in node.args if isinstance(one, ast.Call)}
        if self._coroutine and self._is_app and self._waits(node):
            self._fault(node, f"{ast.unparse(node.func)}() in a coroutine waits on its loop unless it is awaited")
        if self._within:
            blocks = called in BLOCKING_CALLS or called.startswith(BLOCKING_MODULES)
            blocks = blocks or (isinstance(node.func, ast.Attribute) and node.func.attr in BLOCKING_METHODS)
            if blocks and self._coroutine:
                self._fault(node, f"{called or last}() in a coroutine blocks its loop: give it to a thread")
            elif blocks:
                self._blocking.setdefault(self._function_name(), f"{called or last}()")
            elif called.isidentifier() or (called.startswith("self.") and called.count(".") == 1):
                method = called.replace("self.", f"{self._class}.")
                self._calls.append((self._function_name(), method, self._coroutine, node))
        self.generic_visit(node)

    def _follow(self) -> None:
        """A coroutine that calls a function of its module which blocks, itself or by another one."""
        found = True
        while found:
            found = False
            for caller, called, coroutine, _ in self._calls:
                if not coroutine and called in self._blocking and caller not in self._blocking:
                    self._blocking[caller] = f"{self._blocking[called]} in {called}"
                    found = True
        for _, called, coroutine, node in self._calls:
            if coroutine and called in self._blocking:
                self._fault(node, f"{called}() in a coroutine blocks its loop with {self._blocking[called]}")

    def visit_Dict(self, node: ast.Dict) -> None:
        """A piece of an answer that is sent with more to follow."""
        for key, value in zip(node.keys, node.values, strict=True):
            if ast.unparse(key or value) == "'more_body'" and ast.unparse(value) == "True":
                self.streams.add(self._place())
        self.generic_visit(node)


def _is_coroutine(called: Any) -> bool:
    function = called if inspect.isroutine(called) else type(called).__call__
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _name(called: Callable[..., Any]) -> str:
    return f"{called.__module__.removeprefix('kappa.')}.{getattr(called, '__qualname__', type(called).__qualname__)}"


def _dependencies(dependant: Any) -> Iterator[Any]:
    for one in dependant.dependencies:
        yield one.call
        yield from _dependencies(one)


def plain_functions() -> Iterator[str]:
    """What FastAPI and Starlette would call in a thread, one of the few that others need."""
    from fastapi.routing import APIRoute

    from kappa.app.api import application
    from kappa.app.web import site

    for group in application.GROUPS:
        for route in group.router.routes:
            if isinstance(route, APIRoute):
                for called in (route.endpoint, *_dependencies(route.dependant)):
                    if not _is_coroutine(called):
                        yield f"{_name(called)}, of {route.path}: routes and dependencies are `async def`"
    for page in site.pages():
        called = page.handler or page.open
        if not _is_coroutine(called):
            yield f"{_name(called)}, of {page.path}: pages are `async def`"
    for handler in handlers():
        if not _is_coroutine(handler):
            yield f"{_name(handler)}: error handlers are `async def`"


def handlers() -> set[Callable[..., Any]]:
    """Error handlers of the API and of the pages."""
    from types import SimpleNamespace

    from kappa.app.api import application
    from kappa.app.web import site

    pages: Any = site.Site(SimpleNamespace()).app
    known = [*application.api().exception_handlers.values(), *pages.exception_handlers.values()]
    return {one for one in known if one.__module__.startswith("kappa.")}


def unlike_the_map(modules: Iterable[Module]) -> Iterator[str]:
    """What the map lacks, and what it names in vain."""
    rows = [(row["name"], row["marks"]) for row in ROW.finditer(PAGE.read_text())]
    named = {name for name, _ in rows}
    streams = {name for name, marks in rows if "[STREAM]" in marks}
    for name in sorted(one for one in named if [name for name, _ in rows].count(one) > 1):
        yield f"{name} stands there twice"
    known = set(LIFESPAN) | {_name(one).replace(".<locals>", "") for one in handlers()}
    sent = set[str]()
    for module in modules:
        known |= module.asgi | module.groups | module.streams
        sent |= module.streams
    for name in sorted(known - named):
        yield f"{name} is missing: add a line that says where it runs"
    for name in sorted(named - known):
        yield f"{name} is named, and there is no such component"
    for name in sorted((sent ^ streams) & named & known):
        yield f"{name} is {'a stream, and not' if name in sent else 'no stream, and'} marked [STREAM]"


def main() -> int:
    modules = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
    faults = [fault for module in modules for fault in module.faults]
    faults += plain_functions()
    faults += [f"{PAGE.relative_to(ROOT)}: {fault}" for fault in unlike_the_map(modules)]
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
