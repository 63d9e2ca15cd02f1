"""Somebody who reads a page and types what it says."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import kappa
from tests.ground import PATIENCE, eventually, require_program

ROOT = Path(__file__).parents[1]
PORT = "8420"

_BLOCK = re.compile(r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    kind: str
    """`sh` is run, `text` is what the block before it says, `python` is a file."""
    title: str | None
    """A file's name. Of `sh` where it is run: in a clone before the test, in the first terminal until the next one."""
    text: str


def blocks(text: str) -> list[Block]:
    found = [Block(one["kind"], one["title"], one["text"]) for one in _BLOCK.finditer(text)]
    assert len(found) == len(re.findall(r"^```\w", text, re.M)), "a block that the test doesn't understand"
    return found


def fits(said: str, wanted: str) -> bool:
    """`…` on a line stands for anything there, and on a line of its own for any lines; blanks count as one."""
    pattern = ""
    for line in wanted.strip().splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            parts = [r"[ \t]+".join(map(re.escape, part.split(" "))) for part in re.sub(" +", " ", line).split("…")]
            pattern += ".*".join(parts) + r"[ \t]*\n"
    return re.fullmatch(pattern, said.strip() + "\n") is not None


class Reader:
    """Somebody who types what the page says: a home of their own, two terminals, one directory."""

    def __init__(self, place: Path) -> None:
        require_program("curl")
        self.place = place
        self.server: subprocess.Popen[bytes] | None = None
        self.log = place / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        programs = place / "bin"
        programs.mkdir()
        source = Path(kappa.__file__).parents[1]
        # As the installed ones, but surely those of this tree; -P, for a script's directory is not the current one.
        for name, what in {"kg": "-P -m kappa.app.cli.entry", "python": ""}.items():
            (programs / name).write_text(
                f'#!/bin/sh\nPYTHONPATH="{source}${{PYTHONPATH:+:$PYTHONPATH}}" exec {sys.executable} {what} "$@"\n'
            )
            (programs / name).chmod(0o755)
        self.state = place / "exported"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KAPPA_", "PYTHON"))}
        self.env = {
            **clean, "HOME": str(place), "PATH": f"{programs}:{clean['PATH']}", "KAPPA_PORT": self.port,
            "COLUMNS": "200",
        }  # fmt: skip

    def types(self, text: str) -> str:
        """What both streams say; what is exported stays for the next block."""
        keep = f"{text}\nexport -p > {self.state}"
        before = f". {self.state}\n" if self.state.exists() else ""
        done = subprocess.run(
            ["bash", "-eu", "-c", before + keep.replace(PORT, self.port)],
            cwd=self.place, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=110,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        return done.stdout.replace(self.port, PORT)

    def serves(self, text: str) -> str:
        """In the other terminal: what it says when it is up."""
        self.interrupts()
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                ["bash", "-eu", "-c", re.sub(r"^((?:\w+=\S+ )*)kg", r"\1exec kg", text)],
                cwd=self.place, env=self.env, stdout=log, stderr=log,
            )  # fmt: skip

        def up() -> bool:
            assert self.server is not None
            assert self.server.poll() is None, self.log.read_text()
            return "ctrl-C stops it" in self.log.read_text()

        eventually(up, what="the server is up")
        return self.log.read_text().replace(self.port, PORT)

    def interrupts(self) -> None:
        """ctrl-C."""
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            assert self.server.wait(PATIENCE) == 0, self.log.read_text()
            self.server = None

    def follows(self, page: Iterable[Block]) -> str:
        """Everything on the page, in order; what the last command said that nothing was printed for."""
        said: str | None = None
        for block in page:
            match block:
                case Block("python", title=str(name)):
                    (self.place / name).write_text(block.text)
                case Block("sh", title="In a clone"):
                    assert block.text == "make setup\n. .venv/bin/activate\n"
                    assert "\nsetup:" in (ROOT / "Makefile").read_text()
                case Block("sh", title="In the first terminal"):
                    said = self.serves(block.text)
                case Block("sh", title=None):
                    said = self.types(block.text)
                case Block("text"):
                    assert said is not None, "nothing was run that could have said this"
                    assert fits(said, block.text), f"{block.text}\nis printed, but it said\n{said}"
                    said = None
                case _:
                    raise AssertionError(f"nobody knows what to do with {block}")
        return said or ""

    def leaves(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        subprocess.run(["kg", "db", "stop", "--force"], env=self.env, cwd=self.place, capture_output=True, check=False)
