"""`kg doctor`: what was found on this machine."""

from dataclasses import asdict

import typer

from kappa.app import settings
from kappa.app.cli import show
from kappa.app.usecases import doctor as examination


def doctor(as_json: show.AsJson = False) -> None:
    """Say what was found on this machine and what follows. Exits with 1 if something must be mended.

    Example: kg doctor --json
    """
    found = examination.examine(settings.load(), show.say)
    if as_json:
        show.as_json([asdict(finding) for finding in found])
    else:
        show.findings(found)
    if any(finding.level is examination.Level.PROBLEM for finding in found):
        raise typer.Exit(1)
