"""Lets an engine do tool runs: where they are done, and by which runners."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from kappa.engine.engine import Engine
from kappa.engine.tools.client import KIND
from kappa.engine.tools.collect import ArtifactStore
from kappa.engine.tools.container_host import engine_url
from kappa.engine.tools.handler import Bench
from kappa.engine.tools.process_runner import ProcessRunner
from kappa.engine.tools.run import Runner


def install(engine: Engine, home: Path, runners: Mapping[str, Runner] | None = None) -> Bench:
    """Let workers of this engine do tool runs, with their directories and artifacts in a home.

    Without `runners` those of `runners_here`, which let no tool run as a process where it can't be sandboxed.
    """
    home = home.expanduser().absolute()
    root = home / "runs"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = runners if runners is not None else runners_here(home)
    bench = Bench(engine.database, root, ArtifactStore(artifacts_of(home)), found)
    # A tool may be silent for as long as it likes; it has a time-out of its own.
    engine.job(KIND, adoptable=True, stale_timeout=timedelta.max)(bench.handle)
    return bench


def runners_here(
    home: Path, *, sandbox: bool | None = True, shown: Sequence[Path] = (), hidden: Sequence[Path] = ()
) -> dict[str, Runner]:
    """Processes always; containers if there is an engine, and the library to speak with it.

    The rest is as for a `ProcessRunner`; the home is hidden in any case.
    """
    root = home / "runs"
    found: dict[str, Runner] = {"process": ProcessRunner(root, sandbox=sandbox, shown=shown, hidden=[home, *hidden])}
    if find_spec("docker") is not None and (url := engine_url()) is not None:
        # The library is large, and only those who have an engine need it.
        from kappa.engine.tools.container_runner import ContainerRunner

        found["container"] = ContainerRunner(root, url)
    return found


def artifacts_of(home: Path) -> Path:
    """Where the artifacts of a home are stored."""
    return home.expanduser().absolute() / "artifacts"
