"""The peers' own environments: made on demand, made again when their lock changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parent / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = HERE.parent.parent / "requirements" / "bench.lock"
GRAPHILE = HERE / "graphile"
NODE_NEEDED = "node 18 or newer with npm"


def node_problem() -> str | None:
    """Why graphile-worker can't run here, or None."""
    node = shutil.which("node")
    if node is None:
        return "node is not installed"
    if shutil.which("npm") is None:
        return "npm is not installed"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return None if int(version.lstrip("v").split(".")[0]) >= 18 else f"node is {version}"


def ensure_python() -> None:
    """Make the Python peers' environment ready; quick when nothing changed."""
    _once(VENV / ".ready", LOCK, _make_venv)


def ensure() -> None:
    """The same for all environments."""
    ensure_python()
    if node_problem() is None:
        _once(GRAPHILE / "node_modules" / ".ready", GRAPHILE / "package-lock.json", _make_node_modules)


def _once(stamp: Path, lock: Path, make: Callable[[], None]) -> None:
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    make()
    stamp.write_text(wanted)


def _make_venv() -> None:
    print(f"peers: installing {LOCK.name} into {VENV.parent.name}/{VENV.name}", file=sys.stderr)
    # pip of the new environment, not of the caller's: a lock for 3.11 serves every later version too.
    subprocess.run(["python3", "-m", "venv", "--clear", str(VENV)], check=True)
    subprocess.run(
        [
            *(str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check"),
            # The lock is whole. pip must not resolve anew: it would take the newest release for a name with an extra.
            *("--no-deps", "--require-hashes", "-r", str(LOCK)),
        ],
        check=True,
    )


def _make_node_modules() -> None:
    print("peers: npm ci for graphile-worker", file=sys.stderr)
    subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=GRAPHILE, check=True)
