"""Pages out of templates: what every template can say, and how times, numbers and values look."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

from jinja2 import DictLoader, Environment, StrictUndefined

from kappa.app.permissions import Permission
from kappa.app.web import drawings, files
from kappa.engine import JobState

TEMPLATES = Path(__file__).parent / "templates"
MANY = 100_000
"""Characters of a value that a page shows."""
BROKEN = re.compile(r"(?<=[^\n]{60})\n(?=[(\"“‘]?[^\W\d_])")
"""The end of a long line which another word follows: no heading, no item of a list, no row of a table."""


class Templates:
    """The templates of the pages. Their texts are read at once, and each is compiled when it is first shown."""

    def __init__(self, known: dict[str, files.File]) -> None:
        self._environment = Environment(
            loader=DictLoader(_texts()), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        filters: dict[str, Callable[..., Any]] = {
            "ago": ago, "clock": clock, "duration": duration, "flat": flat, "iso": iso, "number": number,
            "plain": plain, "price": price, "pretty": pretty, "signed": signed, "size": size, "words": words,
        }  # fmt: skip
        self._environment.filters.update(filters)
        said: dict[str, Any] = self._environment.globals
        said.update(file=partial(files.address, known), P=Permission, JobState=JobState, draw=drawings)

    def compile(self) -> None:
        """All of them now: the first visit to a page would compile on the loop, up to a tenth of a second."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def render(self, template: str, /, **context: Any) -> str:
        return self._environment.get_template(template).render(**context)


def _texts() -> dict[str, str]:
    """All of them now: later, a page would wait for the disk where nobody may."""
    return {file.name: file.read_text("utf-8") for file in TEMPLATES.iterdir()}


def _now() -> datetime:
    return datetime.now(UTC)


def duration(value: timedelta | float | None) -> str:
    """A span of time, to two units."""
    if value is None:
        return "—"
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    parts: list[str] = []
    left = int(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= length:
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts[:2])


def ago(at: datetime | None) -> str:
    """How long since, or until."""
    if at is None:
        return "—"
    passed = (_now() - at).total_seconds()
    if abs(passed) < 1:
        return "now"
    # One unit will do: the whole time stands behind it.
    text = " ".join(duration(round(abs(passed))).split(" ")[:2])
    return f"{text} ago" if passed > 0 else f"in {text}"


def clock(at: datetime | None) -> str:
    """A time, whole, in UTC."""
    return "—" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds")


def number(value: float | None) -> str:
    """With thin gaps between thousands."""
    if value is None:
        return "—"
    whole = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
    return whole.replace(",", "\u202f")


def signed(value: float) -> str:
    """What may be for or against, to two places; nothing is never against."""
    return f"{round(value, 2) + 0.0:+.2f}"


def price(dollars: Decimal | float | str | None) -> str:
    """What something will cost, the same before it is submitted and after."""
    if dollars is None:
        return "not known"
    return f"$ {Decimal(dollars):.2f}" if Decimal(dollars) else "nothing"


def size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError


def plain(value: Any) -> str:
    """A JSON value on one line."""
    return json.dumps(value, ensure_ascii=False)


def flat(value: Any) -> bool:
    """Whether a JSON value is names with plain values, which read better as a list than as JSON."""
    return isinstance(value, dict) and not any(
        bool(one) and isinstance(one, dict | list) for one in cast("dict[str, Any]", value).values()
    )


def pretty(value: Any) -> str:
    """A JSON value, as people read it."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return text if len(text) <= MANY else f"{text[:MANY]}\n… and {len(text) - MANY} characters more"


def unwrapped(text: str) -> str:
    """Prose whose lines were broken at some width, without those breaks: a page breaks its lines itself.

    A break becomes one space, so that every character stays where it is.
    """
    return BROKEN.sub(" ", text)


def words(name: str) -> str:
    """A name of the engine's, in words."""
    return name.replace("_", " ")
