"""What the documentation prints works as printed."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.conftest import Up
from tests.ground import require_program

ROOT = Path(__file__).parents[2]


def shell_blocks(document: str) -> Iterator[str]:
    yield from re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def expected_status(lines: list[str], at: int) -> int:
    """What stands behind the command, or in the comment of its paragraph; 200 if nobody says."""
    if behind := re.search(r"  # (\d{3})$", lines[at]):
        return int(behind[1])
    for line in reversed(lines[:at]):
        if not line:
            break
        if line.startswith("#") and (said := re.search(r": (\d{3})", line)):
            return int(said[1])
    return 200


def script(document: str) -> tuple[str, list[tuple[str, int]]]:
    """One program of all blocks, in which every curl on a line of its own tells its status; and what they should be."""
    said: list[str] = []
    wanted: list[tuple[str, int]] = []
    for block in shell_blocks(document):
        lines = block.splitlines()
        for at, line in enumerate(lines):
            if line.startswith("export KAPPA="):
                continue  # the port of a test's server is its own
            if line.startswith("curl "):
                wanted.append((line, expected_status(lines, at)))
                line = line.replace("curl ", "curl -o /dev/null -w '%{http_code}\\n' ", 1)
            said.append(line)
    return "\n".join(said), wanted


@pytest.mark.parametrize("document", ["docs/api.md", "docs/fleet.md"])
def test_every_curl_line_answers_as_it_says(document: str, up: Up) -> None:
    require_program("curl")
    program, wanted = script(document)
    assert wanted
    environment = {**os.environ, "KAPPA": up.url, "KAPPA_HOME": str(up.home)}
    done = subprocess.run(
        ["bash", "-eu", "-c", program], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    got = list(zip([line for line, _ in wanted], map(int, done.stdout.split()), strict=True))
    assert got == wanted
