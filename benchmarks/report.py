"""What every benchmark prints and writes: figures, and bars that they are held against."""

import json
import operator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with a bar: at least so much, or at most."""

    value: float
    bar: float
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return (operator.le if self.at_most else operator.ge)(self.value, self.bar)


@dataclass
class Report:
    """The bars and figures of one run."""

    title: str
    bars: dict[str, Bar] = field(default_factory=dict[str, Bar])
    figures: dict[str, float] = field(default_factory=dict[str, float])

    def figure(self, name: str, value: float) -> float:
        self.figures[name] = round(value, 3)
        console.print(f"  {name:<62} {value:>14,.2f}")
        return value

    def bar(self, name: str, value: float, bar: float, *, at_most: bool = False) -> None:
        self.bars[name] = Bar(round(value, 3), bar, at_most)

    def show(self) -> None:
        table = Table(title=self.title, title_justify="left")
        for column in ("bar", "value", "wanted", ""):
            table.add_column(column, justify="left" if column == "bar" else "right")
        for name, bar in self.bars.items():
            wanted = f"{'≤' if bar.at_most else '≥'} {bar.bar:g}"
            table.add_row(name, f"{bar.value:,.2f}", wanted, "[green]ok[/]" if bar.ok else "[red]below[/]")
        console.print(table)

    def write(self, path: Path) -> None:
        bars = {name: {"value": bar.value, "bar": bar.bar, "ok": bar.ok} for name, bar in self.bars.items()}
        path.write_text(json.dumps({"bars": bars, "figures": self.figures}, indent=2) + "\n")
