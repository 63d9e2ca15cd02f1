"""Commands that are known by name and loaded when somebody asks for them, so that `kg` starts quickly.

A command is a place, `module:name`, where a function or a Typer app is found, and the first line of its help, which is
shown where commands are listed. A test holds these lines against what the modules say themselves.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from kappa.app.cli.typed import Command


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is, and what it does, in one line."""

    at: str
    does: str


class Deferred(TyperCommand):
    """Stands for a command in lists, until it is loaded."""

    def __init__(self, name: str, place: Place, panel: str) -> None:
        super().__init__(name=name, help=place.does, rich_help_panel=panel)
        self.place = place
        self.panel = panel

    def load(self) -> Any:
        module, _, attribute = self.place.at.partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            _say_it_our_way(found)
            loaded: Any = get_group(found)
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(cls=Command)(found)
            loaded = get_command(alone)
        loaded.name, loaded.rich_help_panel = self.name, self.panel
        return loaded


def _say_it_our_way(app: typer.Typer) -> None:
    """Every command of an app and of the apps in it is one of ours, also where nobody thought of saying so."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _say_it_our_way(group.typer_instance)


class DeferringGroup(TyperGroup):
    """A group that loads a command when it is called, or when what comes after it is completed."""

    places: ClassVar[dict[str, dict[str, Place]]] = {}
    """Panels of the help, and in each the commands by name."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        known: dict[str, Any] = {
            name: Deferred(name, place, panel) for panel, names in self.places.items() for name, place in names.items()
        }
        self.commands = {**known, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self._load(args[0])
        return super().resolve_command(ctx, args)

    def load_all(self) -> None:
        """Also what nobody asked for, for those who look at every command."""
        for name in list(self.commands):
            self._load(name)

    def _load(self, name: str) -> None:
        if isinstance(known := self.commands.get(name), Deferred):
            self.commands[name] = known.load()
