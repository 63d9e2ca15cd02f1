"""`kg demo`: what a person sees who knows nothing, the first time and the second."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from kappa.app import home as app_home
from tests.ground import PATIENCE, eventually, kg

LONG = 110.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Kappa home that all these demos share, one after the other."""
    made = tmp_path_factory.mktemp("demo") / "home"
    yield made
    kg("db", "stop", "--force", home=made / "demo")


def begin(place: Path, *args: str) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
    return subprocess.Popen(
        [sys.executable, "-m", "kappa.app.cli.entry", "demo", *args],
        env={**clean, "KAPPA_HOME": str(place), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers(said: str) -> list[str]:
    """The answers to the three questions, each with its own lines."""
    return re.split(r"^\S.*\?.*   kg .*$", said, flags=re.MULTILINE)[1:]


def test_the_demo_reads_asks_and_leaves_nothing_running(place: Path) -> None:
    with begin(place) as demo:
        said, complaint = demo.communicate(timeout=LONG)
    assert demo.returncode == 0, complaint
    assert "Traceback" not in complaint
    assert "reads the pages: 12 documents, 12 chunks" in said
    around, between, disputed = answers(said)

    assert "afternoon coffee  REDUCES  deep sleep" in around
    assert "“Afternoon coffee reduces deep sleep.”  03-harbour-study.md" in around
    assert "sleep pressure  CAUSES  deep sleep" in around

    chain, *quotes = between.strip().splitlines()
    assert chain == "physical exercise ── INCREASES ─→ sleep pressure ── CAUSES ─→ deep sleep ── INCREASES ─→ memory"
    assert [line.rsplit("  ", 1)[-1] for line in quotes[:3]] == [
        *("02-sleep-pressure.md", "02-sleep-pressure.md", "07-sleep-and-memory.md")
    ]
    assert quotes[3] == "  No page speaks of both: this was put together from several."

    disputes = dict(re.findall(r"^  (\w.*)  or not\?\n((?:      .*\n?)+)", disputed, flags=re.MULTILINE))
    assert {
        "coffee  CAUSES  dehydration",
        "coffee  CAUSES  arrhythmia",
        "afternoon coffee  REDUCES  deep sleep",
    } <= set(disputes)
    for quoted in disputes.values():
        sides = re.findall(r"^ +(yes|no) +“(.*)”  (\S+)$", quoted, flags=re.MULTILINE)
        assert {side for side, _, _ in sides} == {"yes", "no"}
        assert all((" not " in quote) == (side == "no") for side, quote, _ in sides)
    assert "yes “Coffee causes dehydration.”  05-field-handbook.txt" in disputes["coffee  CAUSES  dehydration"]
    assert "no  “Coffee does not cause dehydration.”  06-water-balance.html" in disputes["coffee  CAUSES  dehydration"]
    assert "MEASURES" not in around, "what measures it doesn't bear on it"
    assert "demo --keep` leaves the server up" in disputed
    assert "http://" not in said, "the server is stopped: there is nothing to go to"
    assert kg("db", "status", home=place / "demo").returncode == 3
    assert app_home.running(place / "demo") == []


def test_the_second_time_it_says_that_the_pages_are_there_and_stays_if_told(place: Path) -> None:
    with begin(place, "--keep") as demo:
        try:
            assert demo.stdout is not None
            said = ""
            while "until ctrl-C" not in said:
                line = demo.stdout.readline()
                assert line, demo.stderr and demo.stderr.read()
                said += line
            assert "The pages are in the graph already" in said
            assert len(answers(said)) == 3
            (running,) = eventually(lambda: app_home.running(place / "demo"))
            assert running.url in said
            assert httpx2.get(f"{running.url}/healthz", trust_env=False, timeout=PATIENCE).is_success
            demo.send_signal(signal.SIGINT)
            rest, complaint = demo.communicate(timeout=PATIENCE)
            assert demo.returncode == 0, complaint
            assert "The server was stopped" in rest
        finally:
            if demo.poll() is None:
                demo.kill()
    assert kg("db", "status", home=place / "demo").returncode == 3


def test_a_demo_that_is_interrupted_stops_and_goes_on_the_next_time(tmp_path: Path) -> None:
    with begin(tmp_path / "home") as demo:
        assert demo.stdout is not None
        while "reads the pages" not in (line := demo.stdout.readline()):
            assert line, demo.stderr and demo.stderr.read()
        demo.send_signal(signal.SIGINT)
        _, complaint = demo.communicate(timeout=LONG)
    assert demo.returncode == 130, complaint
    assert complaint.splitlines()[-1] == "interrupted; `kg demo` goes on where it was"
    with begin(tmp_path / "home") as again:
        said, complaint = again.communicate(timeout=LONG)
    assert again.returncode == 0, complaint
    assert "was interrupted the last time, and goes on" in said
    assert len(answers(said)) == 3
