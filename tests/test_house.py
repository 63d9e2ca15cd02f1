"""The rules of the house are checked by machines, and the machines here: each finds a planted fault."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources and the rules, to plant faults in."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    text = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text.replace('venvPath = "."', f'venvPath = "{BIN.parent.parent}"'))
    return tmp_path


def check(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(copy / "src"), "PATH": "/usr/bin:/bin"}
    program = [str(BIN / command[0]), *command[1:]]
    return subprocess.run(program, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def plant(copy: Path, module: str, line: str) -> None:
    path = copy / "src" / "kappa" / module
    path.write_text(path.read_text() + f"\n\n{line}\n")


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("engine/__init__.py", "import kappa.graph", "engine and graph never meet"),
        ("graph/__init__.py", "import kappa.engine", "engine and graph never meet"),
        ("pg/pool.py", "import kappa.engine", "app above engine"),
        ("engine/__init__.py", "import kappa.app.settings", "app above engine"),
        ("pg/queries.py", "import kappa.pg.pool", "inside pg"),
        ("app/settings.py", "import kappa.app.wiring", "inside app"),
    ],
)
def test_an_import_against_the_layers_is_found(copy: Path, module: str, line: str, contract: str) -> None:
    plant(copy, module, line)
    done = check(copy, "lint-imports", "--no-cache")
    assert done.returncode != 0
    broken = [said for said in done.stdout.splitlines() if said.endswith("BROKEN")]
    assert any(contract in said for said in broken), done.stdout


def test_a_module_that_no_contract_knows_is_found(copy: Path) -> None:
    (copy / "src" / "kappa" / "pg" / "stray.py").write_text('"""Belongs nowhere."""\n')
    done = check(copy, "lint-imports", "--no-cache")
    assert done.returncode != 0
    assert "kappa.pg.stray" in done.stdout


def test_a_lint_fault_is_found(copy: Path) -> None:
    plant(copy, "pg/pool.py", "print('here')")
    done = check(copy, "ruff", "check", "--no-cache", "src")
    assert done.returncode != 0
    assert "T201" in done.stdout


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("from starlette.middleware.base import BaseHTTPMiddleware", "TID251"),
        ("from fastapi import BackgroundTasks", "TID251"),
        ("from starlette.concurrency import run_in_threadpool", "TID251"),
        ("async def stray():\n    import time\n\n    time.sleep(1)", "ASYNC251"),
        ("async def stray():\n    return open('/etc/hosts')", "ASYNC230"),
        ("async def stray():\n    import httpx\n\n    return httpx.get('http://kappa.test')", "ASYNC210"),
        ("async def stray():\n    import subprocess\n\n    return subprocess.run(['true'])", "ASYNC221"),
    ],
)
def test_what_blocks_an_event_loop_is_a_lint_fault(copy: Path, line: str, rule: str) -> None:
    plant(copy, "app/api/health.py", line)
    done = check(copy, "ruff", "check", "--no-cache", "src/kappa/app/api/health.py")
    assert done.returncode != 0
    assert rule in done.stdout


@pytest.fixture(scope="module")
def shared_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For checks that are planted one after another: a copy takes longer than a check."""
    made = tmp_path_factory.mktemp("rules")
    shutil.copytree(ROOT / "src", made / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / "tools", made / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (made / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "threading.md", made / "docs")
    return made


def loop_rules(copy: Path) -> subprocess.CompletedProcess[str]:
    return check(copy, "python", "tools/loop_rules.py")


def test_the_rules_of_the_event_loop_are_kept(shared_copy: Path) -> None:
    done = loop_rules(shared_copy)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


BLOCKING = {
    "import psycopg\nasync def stray():\n    psycopg.connect('')": "psycopg.connect() in a coroutine blocks its loop",
    "async def stray(pool):\n    with pool.connection() as one: ...": (
        "`with ….connection()` in a coroutine waits on its loop"
    ),
    "async def stray(path):\n    return path.read_text()": "path.read_text() in a coroutine blocks its loop",
    "from requests import get\nasync def stray():\n    return get('')": "requests.get() in a coroutine blocks its loop",
    "import time\ndef nap():\n    time.sleep(1)\ndef doze():\n    nap()\nasync def stray():\n    doze()": (
        "doze() in a coroutine blocks its loop with time.sleep() in nap"
    ),
    "async def stray(path):\n    with path.open() as file: ...": "path.open() in a coroutine waits on its loop",
    "async def stray(future):\n    return future.result()": "future.result() in a coroutine waits on its loop",
    "async def stray(thread):\n    thread.join()": "thread.join() in a coroutine waits on its loop",
    "async def stray(thread):\n    thread.join(5)": "thread.join() in a coroutine waits on its loop",
    "async def stray(event):\n    event.wait()": "event.wait() in a coroutine waits on its loop",
    "async def stray(lock):\n    lock.acquire()": "lock.acquire() in a coroutine waits on its loop",
    "async def stray():\n    with LOCK: ...": "`with LOCK` in a coroutine waits on its loop",
    "async def stray(queue):\n    return queue.get()": "queue.get() in a coroutine waits on its loop",
    "async def stray(queue):\n    return queue.get(timeout=1)": "queue.get() in a coroutine waits on its loop",
}
MIDDLEWARE = {
    "@app.middleware('http')\nasync def stray(request, call_next): ...": "@….middleware on stray",
    "from starlette.middleware import base\nclass Stray(base.BaseHTTPMiddleware): ...": "Stray is a BaseHTTPMiddleware",
    "app.add_middleware(object)": "add_middleware",
}
OFF_THE_MAP = {
    "class Stray:\n    async def __call__(self, scope, receive, send): ...": "app.api.{}.Stray is missing",
    "routes = Routes('stray')": "app.api.{} is missing",
    "pages = Pages()": "app.api.{} is missing",
    "async def stray():\n    return StreamingResponse(())": "app.api.{}.stray is missing",
    "async def stray(send):\n    await send({'body': b'', 'more_body': True})": "app.api.{}.stray is missing",
}
PLAIN = {
    "app/api/health.py": (
        "from fastapi import Depends\n"
        "@routes.open('GET', '/stray')\n"
        "def stray() -> None: ...\n"
        "def plain() -> None: ...\n"
        "@routes.open('GET', '/strays')\n"
        "async def strays(one: None = Depends(plain)) -> None: ...",
        ["app.api.health.stray, of /stray: routes and dependencies are `async def`",
         "app.api.health.plain, of /strays: routes and dependencies are `async def`"],
    ),
    "app/web/lanes.py": (
        "@pages.get('/stray', Permission.WORKERS_VIEW)\ndef stray(visit: Visit) -> Response: ...",
        ["app.web.lanes.stray, of /stray: pages are `async def`"],
    ),
    "app/api/problems.py": (
        "def _unknown(request: Request, error: Exception): ...",
        ["app.api.problems._unknown: error handlers are `async def`"],
    ),
}  # fmt: skip


def test_a_fault_against_the_rules_of_the_event_loop_is_found(shared_copy: Path) -> None:
    """All at once, each in a module of its own: to look takes longer than to plant."""
    planted: dict[Path, str] = {}
    for number, (text, said) in enumerate((BLOCKING | MIDDLEWARE | OFF_THE_MAP).items()):
        path = shared_copy / "src" / "kappa" / "app" / "api" / f"stray{number}.py"
        path.write_text(f"{text}\n")
        place = "docs/threading.md" if text in OFF_THE_MAP else str(path.relative_to(shared_copy))
        planted[path] = f"{place}: {said.format(path.stem)}" if text in OFF_THE_MAP else said
    try:
        done = loop_rules(shared_copy)
    finally:
        for path in planted:
            path.unlink()
    assert done.returncode == 1, done.stderr
    for path, said in planted.items():
        lines = [line for line in done.stdout.splitlines() if path.stem in line]
        assert any(said in line for line in lines), (said, lines)


AWAITED = """
import asyncio

async def stray(event, lock, queue, names, given, pool, task, path):
    async with lock:
        await event.wait()
    await asyncio.wait_for(queue.get(), 1)
    asyncio.create_task(event.wait())
    await pool.open()
    await asyncio.to_thread(lambda: path.open())
    return ", ".join(names), given.join(names), given.get("key"), ASKED.get()
"""


def test_what_is_awaited_or_only_called_alike_is_no_fault(shared_copy: Path) -> None:
    path = shared_copy / "src" / "kappa" / "app" / "api" / "awaited.py"
    path.write_text(AWAITED)
    try:
        done = loop_rules(shared_copy)
    finally:
        path.unlink()
    assert (done.returncode, done.stdout) == (0, "")


def test_a_plain_function_where_a_coroutine_belongs_is_found(shared_copy: Path) -> None:
    before = {module: (shared_copy / "src" / "kappa" / module).read_text() for module in PLAIN}
    for module, (text, _) in PLAIN.items():
        plant(shared_copy, module, text)
    try:
        done = loop_rules(shared_copy)
    finally:
        for module, text in before.items():
            (shared_copy / "src" / "kappa" / module).write_text(text)
    assert done.returncode == 1, done.stderr
    for said in (said for _, all_said in PLAIN.values() for said in all_said):
        assert said in done.stdout


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("| `app.api.jobs` |", "| `app.api.tasks` |", "app.api.tasks is named, and there is no such component"),
        ("| `app.api.jobs.events` | [STREAM]", "| `app.api.jobs.events` | [LOOP]", "a stream, and not marked [STREAM]"),
        ("| `app.api.jobs` | [LOOP]", "| `app.api.jobs` | [STREAM]", "no stream, and marked [STREAM]"),
    ],
)
def test_a_line_of_the_map_that_is_not_so_is_found(shared_copy: Path, before: str, after: str, said: str) -> None:
    page = shared_copy / "docs" / "threading.md"
    text = page.read_text()
    assert before in text
    page.write_text(text.replace(before, after))
    try:
        done = loop_rules(shared_copy)
    finally:
        page.write_text(text)
    assert done.returncode == 1
    assert said in done.stdout


def test_a_type_fault_is_found(copy: Path) -> None:
    # The rest is checked by `make check`; without it this takes seconds.
    for part in ("app", "engine", "graph"):
        shutil.rmtree(copy / "src" / "kappa" / part)
    assert check(copy, "basedpyright").returncode == 0
    plant(copy, "pg/pool.py", "wrong: int = 'text'")
    done = check(copy, "basedpyright")
    assert done.returncode != 0
    assert "pool.py" in done.stdout
    assert "reportAssignmentType" in done.stdout


def test_the_lock_names_no_host_and_every_package_has_hashes() -> None:
    for lock in sorted((ROOT / "requirements").glob("*.lock")):
        text = lock.read_text()
        assert "://" not in text, lock
        packages = [line for line in text.splitlines() if "==" in line and not line.startswith(("#", " "))]
        assert packages
        assert all(line.endswith("\\") for line in packages), lock


def test_everything_beside_the_code_ships_with_the_package(copy: Path) -> None:
    (copy / "README.md").write_text("")
    (copy / "LICENSE").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "build_py", "--build-lib", "made"],
        cwd=copy, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    def beside(root: Path) -> set[str]:
        left_out = (".py", ".pyc", ".c", ".so")  # .c is compiled, and goes along with the sources alone
        return {str(path.relative_to(root)) for path in root.rglob("*.*") if path.suffix not in left_out}

    assert len([name for name in beside(copy / "src" / "kappa") if "/corpus/" in name]) == 12
    assert beside(copy / "made" / "kappa") == beside(copy / "src" / "kappa")
