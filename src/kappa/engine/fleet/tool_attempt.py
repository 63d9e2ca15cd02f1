"""Tool runs of a fleet's worker: the runners and the contract are those of every host, the records are the server's."""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from kappa.engine.context import JobContext
from kappa.engine.errors import JobFailed, LeaseLost
from kappa.engine.fleet import wire
from kappa.engine.fleet.files import LOG_PIECE, Files, Held
from kappa.engine.model import Snooze
from kappa.engine.tools import Identity, Runner, RunnerUnavailable, collect, contract
from kappa.engine.tools.handler import Attempt, ToolRunPayload, runner_of
from kappa.engine.tools.run import RunDirectory, discard
from kappa.engine.tools.store import Begun

log = logging.getLogger(__name__)


class FleetBench:
    """Where the tool runs of one worker are done. Every call blocks, so it belongs in a thread."""

    def __init__(self, root: Path, runners: Mapping[str, Runner], files: Files) -> None:
        self._root = root
        self._runners = runners
        self._files = files
        self._tools: dict[Held, wire.Tool] = {}

    @property
    def runners(self) -> list[str]:
        return sorted(self._runners)

    def expect(self, task: wire.Task) -> None:
        """What the handler needs to know of a task before it is called with its payload."""
        if task.tool is not None:
            self._tools[task.task, task.token] = task.tool

    def handle(self, ctx: JobContext, payload: ToolRunPayload) -> wire.ToolOutcome | Snooze:
        tool = self._tools.get(ctx.held)
        if tool is None:
            raise JobFailed(f"the server didn't say what tool run {payload.run_id} is")
        begun = Begun(
            tool.run_id, tool.inputs, tool.tool, tool.version, tool.image, tool.argv, tool.limits, tool.timeout_seconds
        )
        runner = runner_of(self._runners, begun)
        directory = RunDirectory(self._root, Identity(ctx.job_id, ctx.attempt))
        records = ServerRecords(self._files, ctx, tool)
        try:
            return Attempt(records, ctx, begun, runner, directory).run()
        except LeaseLost:
            # Beside the database the next owner would find it. Nobody else can look for it on this host.
            with suppress(RunnerUnavailable):
                runner.stop(directory.identity)
            raise

    def find(self, task: wire.Task) -> bool:
        """Whether the run of a task is still known here, running or ended."""
        identity = Identity(task.task, task.attempt)
        try:
            return any(not runner.find(identity).lost for runner in self._runners.values())
        except RunnerUnavailable as error:
            log.warning("%s can't be looked for: %s", identity.name, error)
            return False

    def forget(self, task: wire.Task) -> None:
        """End what is left of a task's run and remove its files."""
        self._tools.pop((task.task, task.token), None)
        self._clear(Identity(task.task, task.attempt))

    def sweep(self, keep: set[Identity]) -> None:
        """What earlier agents left here and nobody asks for any more."""
        here: set[Identity] = set()
        for name, runner in self._runners.items():
            try:
                here.update(runner.leftovers())
            except RunnerUnavailable as error:
                log.warning("the leftovers of the %s runner stay for now: %s", name, error)
        for identity in sorted(here - keep):
            self._clear(identity)

    def close(self) -> None:
        self._files.close()

    def _clear(self, identity: Identity) -> None:
        try:
            for runner in self._runners.values():
                runner.stop(identity)
                runner.remove(identity)
        except RunnerUnavailable as error:
            log.warning("the leftovers of %s stay for now: %s", identity.name, error)
            return
        directory = RunDirectory(self._root, identity)
        discard(directory.path)
        discard(directory.private)


class ServerRecords:
    """The records of a run, kept by the server."""

    def __init__(self, files: Files, ctx: JobContext, tool: wire.Tool) -> None:
        self._files = files
        self._ctx = ctx
        self._tool = tool
        self._still_wanted: Callable[[], None] = ctx.raise_if_cancelled

    def put_inputs(self, into: Path) -> list[str]:
        for name in self._tool.input_files:
            self._files.fetch(self._ctx.held, name, into, self._still_wanted)
        return sorted(self._tool.input_files)

    def log_length(self, stream: str) -> int:
        # Whoever began this attempt has said nothing before.
        return self._files.put_log(self._ctx.held, stream, 0, b"", self._still_wanted) if self._ctx.adopted else 0

    def put_log(self, stream: str, at: int, piece: bytes) -> None:
        end = at + len(piece)
        while at < end:
            part = piece[at - end :][:LOG_PIECE]
            kept = self._files.put_log(self._ctx.held, stream, at, part, self._still_wanted)
            if kept <= at:
                return  # the server keeps no more
            at = kept

    def note_exit(self, code: int | None) -> None:
        if code is not None:
            self._files.put_exit(self._ctx.held, code, self._still_wanted)

    def keep(self, directory: RunDirectory, result: contract.Result, code: int | None, most: int) -> wire.ToolOutcome:
        uploaded: list[wire.Uploaded] = []
        with closing(collect.each_artifact(directory, result.artifacts, most)) as found:
            for one in found:
                sha256 = self._files.put_artifact(self._ctx.held, one.path, one.number, one.size, self._still_wanted)
                uploaded.append(wire.Uploaded(path=one.path, media_type=one.media_type, size=one.size, sha256=sha256))
        return wire.ToolOutcome(outputs=result.outputs, exit_code=code, artifacts=uploaded)
