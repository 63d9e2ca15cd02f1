"""The examples of `--help` work as printed, beside a server that has read the pages of the demo."""

import re
import shlex
from pathlib import Path

import pytest

from kappa.app.cli import entry
from kappa.app.cli.demo import CORPUS, ONTOLOGY
from tests.app.conftest import Up
from tests.app.person import Beside
from tests.app.test_cli_help import acting
from tests.ground import kg

NOT_TRIED = {
    "kg up": "it serves until it is told to stop",
    "kg demo": "it serves until it is told to stop",
    "kg worker": "its server is another machine",
    "kg mcp": "it is an agent's configuration",
    "kg admin workers": "it watches until ctrl-C",
    "kg user password": "it asks on a terminal",
    "kg tool run": "it runs the reader's program",
    "kg restore": "it asks on a terminal",
}
NAMES_ONE = re.compile(r" (\d+|[0-9a-f]{8}-[0-9a-f-]{27}|ada)\b")
"""Something that the reader has, and a server that was made for this may not have."""


def examples() -> dict[str, str]:
    """The first example of each command, by what one types. `kg db` has a database of its own, and its own tests."""
    shown = {path: command.help.split("Example: ")[1].splitlines()[0].strip() for path, command in acting().items()}
    return {path: line for path, line in shown.items() if path not in NOT_TRIED and not path.startswith("kg db ")}


@pytest.mark.timeout(300)  # seventy commands, one after the other
def test_every_example_does_what_it_shows(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = kg("ingest", str(CORPUS), "--ontology", ONTOLOGY, "--auto-approve", "--watch", home=up.home)
    assert read.returncode == 0, read.stderr
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "otters.txt").write_text("Otters eat fish.")
    (tmp_path / "report.pdf").write_text("Rivers contain fish.")
    monkeypatch.chdir(tmp_path)
    typed = Beside(up, monkeypatch, capsys)
    wrong: dict[str, str] = {}
    for line in examples().values():
        inner = re.fullmatch(r"export KAPPA_TOKEN=\$\((.+)\)", line)
        code, _, complaint = typed(*shlex.split(inner[1] if inner else line)[1:])
        refused = NAMES_ONE.search(line) and re.fullmatch(r"(kg: [^\n]+\n)+", complaint)
        if code != 0 and not (code == entry.FAILED and refused):
            wrong[line] = complaint
    assert wrong == {}
    assert (tmp_path / "map.svg").read_text().endswith("</svg>")
