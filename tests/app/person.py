"""Somebody who uses `kg`: with a home, a token, a pipe or a terminal."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kappa.app.cli import entry
from tests.app import warm
from tests.app.conftest import Up
from tests.conftest import Server
from tests.ground import PATIENCE

ROOT = Path(__file__).parents[2]
WITH_GATES = {
    "KAPPA_HANDLERS": "tests.app.stepwise:declare",
    "PYTHONPATH": os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part),
}


@contextmanager
def served(server: Server, template: str, factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One `kg up` for many tests, on a database of its own."""
    url = server.create(template)
    up = Up(url, factory.mktemp("up") / "home", env=WITH_GATES)
    try:
        yield up
    finally:
        up.kill()
        server.drop(url)


class Beside:
    """Runs `kg` in the test's own process, where a start costs nothing; as the operator of a server."""

    def __init__(self, up: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        # A backup is the graph of the server that is named, or of the home's own database.
        for name, value in {"KAPPA_HOME": str(up.home), "KAPPA_SERVER": up.url, "KAPPA_TOKEN": up.token}.items():
            monkeypatch.setenv(name, value)

    def __call__(self, *args: object) -> tuple[int, str, str]:
        """The exit code, and what went to standard output and to standard error."""
        self._monkeypatch.setattr(sys, "argv", ["kg", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        said = self._capsys.readouterr()
        code = ended.value.code
        # `sys.exit` with a text is that text on standard error, and 1.
        return (code, said.out, said.err) if isinstance(code, int) else (1, said.out, f"{said.err}{code}\n")


def kg(*args: str, home: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """As `tests.ground.kg`, where nothing depends on how the interpreter starts and ends."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
    return warm.kg(args, {**clean, "KAPPA_HOME": str(home), "COLUMNS": "200", **(env or {})}, "", timeout=60)


class Person:
    """Runs `kg` as itself; the operator if no token is given."""

    def __init__(self, home: Path, *, token: str | None = None, server: str | None = None) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
        given = {"KAPPA_TOKEN": token, "KAPPA_SERVER": server}
        named = {name: value for name, value in given.items() if value is not None}
        self.env = {**clean, "KAPPA_HOME": str(home), "COLUMNS": "300", **named}

    @staticmethod
    def _command(args: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "kappa.app.cli.entry", *map(str, args)]

    def __call__(self, *args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return warm.kg([*map(str, args)], self.env, stdin, timeout=60)

    def says(self, *args: object, stdin: str = "") -> Any:
        """What `kg … --json` prints, all went well."""
        done = self(*args, "--json", stdin=stdin)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, code: int, *args: object, stdin: str = "") -> str:
        """The one line that `kg` says when it fails with this code and no output."""
        done = self(*args, stdin=stdin)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("kg: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr.removeprefix("kg: ").strip()

    @contextmanager
    def begins(self, *args: object) -> Iterator["subprocess.Popen[str]"]:
        """`kg` that goes on beside the test, read line by line."""
        with subprocess.Popen(
            self._command(args), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def on_terminal(self, *args: object, types: str = "") -> tuple[int, str]:
        """The exit code, and what a terminal got to see, echo included."""
        person, terminal = pty.openpty()
        env = {**self.env, "TERM": "xterm-256color", "COLUMNS": "120"}
        process = subprocess.Popen(
            self._command(args), env=env, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
        )
        os.close(terminal)
        seen = b""
        try:
            while True:
                try:
                    seen += os.read(person, 65536)
                except OSError:  # the other end is closed: that is how a terminal's last word looks on Linux
                    break
                # The space comes when nothing is echoed any more; what is typed before is thrown away.
                if types and seen.endswith(b": "):
                    answer, _, types = types.partition("\n")
                    os.write(person, answer.encode() + b"\n")
                    seen += b"\n"
            return process.wait(PATIENCE), seen.decode(errors="replace")
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            os.close(person)


def line_of(stream: Any) -> str:
    """The next line of a process that goes on."""
    said: str = stream.readline()
    assert said, "the process ended"
    return said.strip()


def hired(up: Up, name: str, *roles: str) -> Person:
    """Somebody new with these roles."""
    with up.client() as client:
        assert client.post("/users", json={"name": name, "roles": list(roles)}).is_success
        token = client.post(f"/users/{name}/tokens", json={"name": "test"}).json()["token"]
    return Person(up.home, token=token)
