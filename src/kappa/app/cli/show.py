"""How `kg` speaks: results on standard output, everything else on standard error."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from kappa.app.usecases.doctor import Finding

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

_AS_WIDE_AS_IT_TAKES = 10_000
_FILLED = re.compile(r" +\n")


class _Out:
    """Standard output as it is at the time, without the spaces that fill a table's last column."""

    def write(self, text: str) -> int:
        sys.stdout.write(_FILLED.sub("\n", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def _console(*, stderr: bool = False) -> Console:
    made = Console(stderr=stderr, highlight=False)
    if made.is_terminal:
        return made
    # A program that reads a table wants a row on a line, not what fits into a window that isn't there.
    if "COLUMNS" not in os.environ:
        made.width = _AS_WIDE_AS_IT_TAKES
    if not stderr:
        made.file = cast(IO[str], _Out())
    return made


out = _console()
err = _console(stderr=True)

_MARKS = {"ok": ("✓", "green"), "note": ("•", "yellow"), "problem": ("✗", "red")}


def say(line: str) -> None:
    """Tell a person who waits what is going on."""
    err.print(Text(line, style="dim"))


def line(text: str) -> None:
    """One line of a result, however long."""
    out.print(printable(text), soft_wrap=True, markup=False)


def as_json(value: object) -> None:
    said = json.dumps(value, default=_plain, ensure_ascii=False)
    # Colours for eyes alone: FORCE_COLOR and the like would put them into what a program reads.
    if out.is_terminal and sys.stdout.isatty():
        out.print_json(said)
    else:
        typer.echo(json.dumps(json.loads(said), indent=2, ensure_ascii=False))


def as_json_line(value: object) -> None:
    """One of several documents, each on a line of its own."""
    typer.echo(json.dumps(value, default=_plain))


def _plain(value: object) -> object:
    from pydantic import BaseModel  # a command that prints no such value doesn't wait for it

    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def printable(text: object) -> str:
    """A text of somebody else's, in which nothing moves the cursor or paints the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in str(text))


def fields(values: Mapping[str, Any]) -> None:
    """Names and values, one a line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in values.items():
        grid.add_row(Text(name, style="dim"), Text(printable(value), overflow="fold"))
    out.print(grid)


def table(*titles: str) -> Table:
    """A table without lines; cells fold rather than lose their ends."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        made.add_column(title, overflow="fold")
    return made


def fitted(rows: Table, spare: Sequence[str], last: int) -> Table:
    """A table without the columns that a narrow window has no room for, the first of the `spare` ones first.

    So many characters of its last column are enough: a sentence folds well, a name or a time doesn't.
    """
    for title in (None, *spare):
        rows.columns = [column for column in rows.columns if column.header != title]
        cells = [[column.header, *column.cells] for column in rows.columns]
        widths = [max(Measurement.get(out, out.options, cell).maximum for cell in column) for column in cells]
        if sum(widths[:-1]) + 2 * len(widths) + min(last, widths[-1]) <= out.width:
            for column in rows.columns[:-1]:
                column.no_wrap = True
            break
    return rows


def findings(found: "Sequence[Finding]") -> None:
    rows = table("", "looked at", "found", "what follows")
    for finding in found:
        mark, colour = _MARKS[finding.level]
        rows.add_row(Text(mark, style=colour), finding.topic, Text(finding.found), Text(finding.follows))
    out.print(rows)


def count(number: int, what: str) -> str:
    """So many of something, in words that fit."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
