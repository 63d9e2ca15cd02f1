"""Writes what the documentation repeats of the code: `python tools/reference.py [--check]`.

Settings, commands, exit codes, routes, permissions, roles, the ways between states and the list of decisions have one
source, the code; a page has a marked place for each. Everything around the marks is written by hand and left alone.
"""

import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

PLACES = {
    "configuration.md": ("settings",),
    "cli.md": ("exit codes", "commands"),
    "cli-reference.md": ("every command",),
    "api-reference.md": ("routes",),
    "permissions.md": ("permissions", "kinds", "roles"),
    "job-states.md": ("ways",),
    "adr/README.md": ("decisions",),
}


def settings() -> Iterator[str]:
    from kappa.app.settings import Settings

    yield from ("| variable | default | what it is |", "|---|---|---|")
    for name, field in Settings.model_fields.items():
        yield f"| `KAPPA_{name.upper()}` | {_default(field.default)} | {field.description} |"


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{value.value if isinstance(value, Enum) else value}`"


def exit_codes() -> Iterator[str]:
    from kappa.app.cli.entry import EXIT_CODES

    yield from ("| exit code | meaning |", "|---|---|")
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"


def commands() -> Iterator[str]:
    """The commands by panel, each with its first paragraph."""
    from kappa.app.cli.commands import whole

    panels: dict[str, list[str]] = {}
    for path, command, panel in _walk(whole(), "kg", ""):
        if path != "kg" and _acts(command):
            link = f"cli-reference.md#{_anchor(path)}"
            panels.setdefault(panel, []).append(f"| [`{_usage(path, command)}`]({link}) | {_about(command)[0]} |")
    for panel, rows in panels.items():
        yield from (f"**{panel}**", "", "| command | what it does |", "|---|---|", *rows, "")


def every_command() -> Iterator[str]:
    from kappa.app.cli.commands import whole

    for path, command, _ in _walk(whole(), "kg", ""):
        if path == "kg" or not _acts(command):
            continue
        first, *more = _about(command)
        yield from (f"## {path}", "", "```text", _usage(path, command), "```", "", first, "")
        for paragraph in more:
            yield from (paragraph, "")
        options = list(_options(command))
        if options:
            yield from ("| option | what it is |", "|---|---|", *options, "")


def _walk(command: Any, path: str, panel: str) -> Iterator[tuple[str, Any, str]]:
    yield path, command, panel
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from _walk(child, f"{path} {name}", panel or child.rich_help_panel or "Others")


def _acts(command: Any) -> bool:
    """Whether it does something, and is not only where others hang."""
    return not getattr(command, "commands", {}) or command.invoke_without_command


def _usage(path: str, command: Any) -> str:
    words = [path]
    for one in command.params:
        if one.param_type_name == "argument":
            word = (one.metavar or one.name.upper()) + (
                "…" if one.nargs == -1 and "…" not in (one.metavar or "") else ""
            )
            words.append(word if one.required else f"[{word}]")
    return " ".join(words)


def _about(command: Any) -> list[str]:
    """The paragraphs of its help on a line each; its example is a block."""
    made: list[str] = []
    for paragraph in command.help.split("\n\n"):
        text = paragraph.strip()
        if text.startswith("Example: "):
            lines = [re.sub(r"^[^`'\"$]*?: (?=kg )", "", line.strip()) for line in text.splitlines()]
            made.append("\n".join(["```sh", *(line.removeprefix("Example: ") for line in lines), "```"]))
        else:
            made.append(_cell(" ".join(text.split())))
    return made


def _options(command: Any) -> Iterator[str]:
    for one in command.params:
        if one.param_type_name != "option" or one.hidden or one.name == "help":
            continue
        names = ", ".join(f"`{word}`" for word in [*one.opts, *one.secondary_opts])
        kind = one.type_descriptor.annotation
        choices = [f"`{choice.value}`" for choice in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
        among = f" One of {', '.join(choices)}." if choices else ""
        default = "" if one.default is None or one.default is False or one.default == [] else f" ({_word(one.default)})"
        default = f" ({one.show_default})" if isinstance(one.show_default, str) else default
        yield f"| {names} | {_cell(one.help or '')}{among}{default} |"


def _word(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _anchor(text: str) -> str:
    return text.lower().replace(" ", "-")


def routes() -> Iterator[str]:
    from kappa.app.api import application

    document = application.api().openapi()
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            what = _cell(" ".join(route.get("description", route["summary"]).split()))
            permission = route["x-permission"]
            asked = "open" if permission == "open" else f"`{permission}`"
            row = f"| `{method.upper()} {path}` | {asked} | {what} |"
            groups.setdefault(route["tags"][0], []).append(row)
    for tag, rows in groups.items():
        yield from (f"## {tag}", "", "| route | permission | what it does |", "|---|---|---|", *rows, "")


def permissions() -> Iterator[str]:
    from kappa.app.permissions import MEANING

    yield from ("| permission | what it allows |", "|---|---|")
    for permission, meaning in MEANING.items():
        yield f"| `{permission}` | {meaning} |"


def kinds() -> Iterator[str]:
    from kappa.app.kinds.access import ACCESS, OWN_KIND

    yield from ("| kind | permissions | made only by | its payload may name |", "|---|---|---|---|")
    for kind, access in {**{f"`{kind}`": access for kind, access in ACCESS.items()}, "any other": OWN_KIND}.items():
        permissions = ", ".join(f"`{one}`" for one in sorted(access.permissions))
        names = "one's own uploads, or anybody's with `jobs:manage`" if access.uploads else ""
        yield f"| {kind} | {permissions} | {access.made_by or ''} | {names} |"


def roles() -> Iterator[str]:
    from kappa.app.permissions import ROLES, Permission

    yield f"| permission | {' | '.join(f'`{name}`' for name in ROLES)} |"
    yield "|---" * (len(ROLES) + 1) + "|"
    for permission in Permission:
        yield f"| `{permission}` |" + "".join(" ✓ |" if permission in allowed else " |" for allowed in ROLES.values())


def ways() -> Iterator[str]:
    from kappa.engine.model import TRANSITIONS, JobState

    yield from ("| from | to |", "|---|---|")
    for state in JobState:
        there = ", ".join(f"`{one}`" for one in JobState if one in TRANSITIONS[state])
        yield f"| `{state}` | {there or 'none: it is over'} |"


def decisions() -> Iterator[str]:
    yield from ("| | decision |", "|---|---|")
    for page in sorted((DOCS / "adr").glob("[0-9]*.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        title = re.sub(r"^(ADR )?\d+[.:] ", "", title)
        yield f"| {int(page.name[:4])} | [{title}]({page.name}) |"


MAKERS: dict[str, Callable[[], Iterator[str]]] = {
    "settings": settings, "exit codes": exit_codes, "commands": commands, "every command": every_command,
    "routes": routes, "permissions": permissions, "kinds": kinds, "roles": roles, "ways": ways,
    "decisions": decisions,
}  # fmt: skip


def pages() -> Iterator[tuple[Path, str]]:
    """Each page, and what it should say."""
    for name, marks in PLACES.items():
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        for mark in marks:
            text = _put(text, mark, "\n".join(MAKERS[mark]()).strip(), page)
        yield page, text


def _put(text: str, mark: str, made: str, page: Path) -> str:
    begin, end = f"<!-- {mark}: `make generate` writes this -->", f"<!-- end of {mark} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"{page} has no place for {mark}: {begin} … {end}")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def main() -> None:
    stale = [(page, text) for page, text in pages() if page.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        if stale:
            sys.exit(f"not as the code says, `make generate` mends it: {', '.join(page.name for page, _ in stale)}")
        return
    for page, text in stale:
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
