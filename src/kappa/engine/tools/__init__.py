"""Tool runs: other people's programs as jobs, limited, outliving their worker, settled once.

bench = tools.install(engine, Path("~/.kappa"))
async with engine.async_client() as client:
    await Tools(client).register("wc", "1", argv=["python3", "wc.py"])
    await Tools(client).run("wc", inputs={"text": "to be or not"})
"""

from typing import TYPE_CHECKING

from kappa import late

if TYPE_CHECKING:
    from kappa.engine.tools.client import CONTAINERS, KIND, ToolError, ToolNotFound, Tools
    from kappa.engine.tools.collect import ArtifactStore, Stored
    from kappa.engine.tools.contract import ContractBroken
    from kappa.engine.tools.handler import Bench
    from kappa.engine.tools.limits import ToolLimits
    from kappa.engine.tools.process_runner import ProcessRunner
    from kappa.engine.tools.run import Exit, Found, Identity, Limits, Runner, RunnerUnavailable, Spec
    from kappa.engine.tools.set_up import artifacts_of, install, runners_here
    from kappa.engine.tools.status import ToolRunStatus
    from kappa.engine.tools.store import LogPiece, Tool, ToolRun

__all__ = [
    "CONTAINERS",
    "KIND",
    "ArtifactStore",
    "Bench",
    "ContractBroken",
    "Exit",
    "Found",
    "Identity",
    "Limits",
    "LogPiece",
    "ProcessRunner",
    "Runner",
    "RunnerUnavailable",
    "Spec",
    "Stored",
    "Tool",
    "ToolError",
    "ToolLimits",
    "ToolNotFound",
    "ToolRun",
    "ToolRunStatus",
    "Tools",
    "artifacts_of",
    "install",
    "runners_here",
]

_HOMES = ("limits", "status", "contract", "run", "collect", "store", "client", "handler", "process_runner", "set_up")

if not TYPE_CHECKING:
    __getattr__ = late.names(__name__, __all__, _HOMES)
