"""`kg` in a process of its own that needn't load anything: it is forked off one that has loaded, once, what all need.

It has its own arguments, environment, directory and standard streams, as if it had been started. What looks at the
environment or at a terminal while it is loaded is not among the modules that are there already.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LOADED = [
    "kappa.app.cli.commands",
    "kappa.app.remote",
    "kappa.app.api.graph_schemas",
    "kappa.app.api.ingest_schemas",
    "kappa.app.api.ontology_schemas",
    "rich.progress",
    "typer._adapters",
]
STREAMS = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY | os.O_APPEND), ("stderr", os.O_WRONLY | os.O_APPEND))

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(LOADED)


def kg(args: Sequence[str], env: dict[str, str], stdin: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    with tempfile.TemporaryDirectory(prefix="kg-") as made:
        place = Path(made)
        for name, _ in STREAMS:
            (place / name).write_text(stdin if name == "stdin" else "")
        process = _forks.Process(target=_be, args=(list(args), env, str(Path.cwd()), made))
        process.start()
        process.join(timeout)
        if (code := process.exitcode) is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(args), timeout)
        process.close()
        return subprocess.CompletedProcess(list(args), code, *((place / name).read_text() for name, _ in STREAMS[1:]))


def _be(args: list[str], env: dict[str, str], directory: str, place: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(directory)
    for number, (name, mode) in enumerate(STREAMS):
        opened = os.open(f"{place}/{name}", mode)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - what was there is closed in every such process
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.argv = ["kg", *args]

    from kappa.app.cli.entry import main

    main()
