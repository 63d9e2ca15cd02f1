"""The examples do what their comments say."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (["hello.py", "Ada", "Grace"], ["succeeded: hello, Ada (attempt 1)", "succeeded: hello, Grace (attempt 1)"]),
        (["orders.py", "--self-test"], ['{"order": 1, "job": 1}', "422", '"receipt": "one tea, thank you"']),
        (["graph.py"], ["the river flows into: Sea"]),
        (["cron.py", "--now"], ["another minute (job 1)", "'every minute' fired for "]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_an_example_says_what_it_promises(tmp_path: Path, command: list[str], lines: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line for line in lines if line not in done.stdout] == [], done.stdout
    assert "poison" not in done.stdout
