"""How `kg` speaks: results on standard output, everything else on standard error."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kappa.app.usecases.doctor import Finding, Level

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

_MARKS = {Level.OK: ("✓", "green"), Level.NOTE: ("•", "yellow"), Level.PROBLEM: ("✗", "red")}


def say(line: str) -> None:
    """Tell a person who waits what is going on."""
    err.print(Text(line, style="dim"))


def as_json(value: object) -> None:
    out.print_json(json.dumps(value, default=str))


def fields(values: Mapping[str, Any]) -> None:
    """Names and values, one a line."""
    table = Table.grid(padding=(0, 2))
    for name, value in values.items():
        table.add_row(Text(name, style="dim"), Text(str(value), overflow="fold"))
    out.print(table)


def findings(found: Sequence[Finding]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "looked at", "found", "what follows"):
        table.add_column(title, overflow="fold")
    for finding in found:
        mark, colour = _MARKS[finding.level]
        table.add_row(Text(mark, style=colour), finding.topic, Text(finding.found), Text(finding.follows))
    out.print(table)
