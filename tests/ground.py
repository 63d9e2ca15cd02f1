"""The ground that tests stand on: conditions waited for, real processes, parts that may be missing."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

import pytest

T = TypeVar("T")

PATIENCE = 60.0
REQUIRE_ALL = "KAPPA_TEST_REQUIRE_ALL"

ROOM = 2 << 30
"""Bytes for each process of a run: the fullest database that a test makes, several times over."""

missing_parts: Counter[str] = Counter()


def memory() -> Path | None:
    """Where files are kept in memory, if there is room. A server is a thousand files, and on a disk making them costs
    more than most tests do; a killed process loses no more of them here than there."""
    place = Path("/dev/shm")
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    enough = os.access(place, os.W_OK) and shutil.disk_usage(place).free >= ROOM * processes
    return place if enough else None


def eventually(look: Callable[[], T], *, within: float = PATIENCE, what: str = "") -> T:
    """Look again and again until there is something to see, and give it back."""
    until = time.monotonic() + within
    pause = 0.001
    while True:
        if seen := look():
            return seen
        if time.monotonic() > until:
            raise AssertionError(f"not within {within:g} s: {what or look}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def require_program(name: str) -> str:
    """The path of a program that the test can't do without."""
    everywhere = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    if found := shutil.which(name, path=everywhere):
        return found
    return lacking(name)


@contextmanager
def path_without(*programs: str) -> Generator[str]:
    """A PATH of the system's programs but these, that every user may read."""
    with tempfile.TemporaryDirectory(prefix="kappa-test-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        for directory in ("/usr/bin", "/bin"):
            for program in Path(directory).iterdir():
                link = Path(made, program.name)
                if program.name not in programs and not link.is_symlink():
                    link.symlink_to(program)
        yield made


def lacking(part: str) -> str:
    """Give the test up, loudly: counted and listed at the end, and a failure where everything must be there."""
    missing_parts[part] += 1
    if os.environ.get(REQUIRE_ALL):
        pytest.fail(f"{part} is not there, and {REQUIRE_ALL} says that it must be")
    pytest.skip(f"NOT TESTED: {part} is not there (make test-packages installs it)")


class Script:
    """A Python program in a process of its own, spoken to line by line."""

    def __init__(self, source: str, *args: object, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), *map(str, args)],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line that the program says."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said:
            raise AssertionError(f"the program ended: {self.process.communicate()[1]}")
        return said.strip()

    def tell(self, text: str = "") -> None:
        """Say a line to the program."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        """Wait for a good end."""
        _, complaint = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, complaint

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def kg(*args: str, home: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line as a person would."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
    return subprocess.run(
        [sys.executable, "-m", "kappa.app.cli.entry", *args],
        env={**clean, "KAPPA_HOME": str(home), "COLUMNS": "200", **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
