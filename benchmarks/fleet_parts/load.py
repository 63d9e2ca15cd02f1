"""The simulator's process, as the benchmark sees it."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.fleet_parts.ground import KIND, CannotRun, Ground, Stand
from benchmarks.fleet_parts.ledger import Findings, compare
from benchmarks.report import console

PATIENCE = 30.0
"""Seconds that a window's last answers are waited for."""
OWN_LIMIT = 0.70
"""Of its core: above this it measures itself."""


class Bottleneck(Exception):
    """The simulator could not do what it was to do; nothing that it measured can be believed."""


class Load:
    """Starts the simulator on its core, and asks it."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._process: subprocess.Popen[str] | None = None
        self.busiest = 0.0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.fleet_parts.simulator", str(self._ground.cores.load)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tell(self, do: str, **said: Any) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **said}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CannotRun(f"the simulator ended while it was told to {do}")
        answer = json.loads(line)
        if "error" in answer:
            raise CannotRun(f"the simulator was told to {do}: {answer['error']}")
        return answer

    def set_up(self, stand: Stand, timers: dict[str, float]) -> None:
        self.tell(
            "set_up", identities=str(self._ground.identities), port=stand.server.port, timers=timers, kinds=[KIND],
            flooders=self._ground.flooders,
        )  # fmt: skip

    def window(self, seconds: float) -> tuple[float, float]:
        """Let it go on for some time; from when to when."""
        begin = time.monotonic()
        time.sleep(seconds)
        return begin, time.monotonic()

    def read(self, begin: float, end: float) -> dict[str, Any]:
        """What was measured in a window, unless the simulator itself was the bottleneck."""
        found = self.tell("read", begin=begin, end=end, patience=PATIENCE, raw="beat")
        self.busiest = max(self.busiest, found["cpu"])
        if found["cpu"] > OWN_LIMIT:
            raise Bottleneck(
                f"the simulator used {found['cpu']:.0%} of its core (at most {OWN_LIMIT:.0%}): "
                "it measured itself, and nothing is reported"
            )
        return found

    def settle(self, stand: Stand, patience: float = 30.0) -> Findings:
        """Let everything come to rest and compare the ledger with the tables."""
        if left := self.tell("quiet", patience=patience)["under_way"]:
            console.print(f"  [yellow]{left} calls were not answered within {patience:.0f} s of rest[/]")
        path = Path(self._ground.place) / "ledger.json"
        self.tell("write_ledger", path=str(path))
        found = compare(stand.url, json.loads(path.read_text()))
        path.unlink()
        return found

    def hang_up(self) -> None:
        self.tell("hang_up")
