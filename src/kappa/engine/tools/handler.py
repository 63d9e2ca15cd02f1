"""The handler of the kind `tool_run`: begins a run or finds it again, follows it, and settles from how it ended."""

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import psycopg
from pydantic import BaseModel
from pydantic_core import to_json

from kappa.engine.context import JobContext
from kappa.engine.errors import AttemptLost, JobFailed, JobTimedOut
from kappa.engine.model import Snooze
from kappa.engine.tools import collect, contract, store
from kappa.engine.tools.collect import ArtifactStore
from kappa.engine.tools.contract import ContractBroken
from kappa.engine.tools.run import (
    MEGABYTE,
    Exit,
    Identity,
    Limits,
    RunDirectory,
    Runner,
    RunnerUnavailable,
    Spec,
    directories,
    discard,
    write_whole,
)
from kappa.engine.tools.sandbox import SandboxMissing
from kappa.engine.tools.store import Begun
from kappa.pg import Bounds, Database, PgError, Pool
from kappa.pg.ops import Op, run

T = TypeVar("T")
Kept_co = TypeVar("Kept_co", covariant=True)

log = logging.getLogger(__name__)

LOOK_EVERY = 0.5
SWEEP_EVERY = 60.0
TRY_AGAIN = timedelta(seconds=5)
STREAMS = ("stdout", "stderr")
LEEWAY = 2.0
"""A supervisor keeps the time-out for the case that no worker does; where one does, that one comes first."""


class ToolRunPayload(BaseModel):
    run_id: int


class ToolRunResult(BaseModel):
    run_id: int
    artifacts: int


class Bench:
    """Where the tool runs of one host are done."""

    def __init__(self, database: Database, root: Path, artifacts: ArtifactStore, runners: Mapping[str, Runner]) -> None:
        self._root = root
        self._artifacts = artifacts
        self._runners = runners
        self._pool = Pool(database.url, "tools", Bounds(0, 2), behind_pooler=database.behind_pooler)
        self._opened = False

    def close(self) -> None:
        if self._opened:
            self._pool.close()

    def handle(self, ctx: JobContext, payload: ToolRunPayload) -> ToolRunResult | Snooze:
        begun = self.do(store.begin_run(payload.run_id, ctx.job_id))
        if begun is None:
            raise JobFailed(f"there is no tool run {payload.run_id} of this job: ask for a new one", retry=False)
        directory = RunDirectory(self._root, Identity(ctx.job_id, ctx.attempt))
        records = DatabaseRecords(self, ctx, begun, self._artifacts)
        return Attempt(records, ctx, begun, runner_of(self._runners, begun), directory).run()

    @contextmanager
    def sweeping(self, every: float = SWEEP_EVERY) -> Generator[None]:
        """Sweep now and then, in a thread, while the block lasts."""
        over = threading.Event()

        def keep_on() -> None:
            while not over.wait(every):
                try:
                    self.sweep()
                except (psycopg.Error, PgError, OSError) as error:
                    log.warning("leftovers of tool runs stay for now: %s", error)

        thread = threading.Thread(target=keep_on, name="sweep", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def sweep(self) -> list[Identity]:
        """End and forget runs that no job will ever ask for again, and artifacts that were never wholly stored."""
        self._artifacts.sweep()
        here = set(directories(self._root))
        for name, runner in self._runners.items():
            try:
                here.update(runner.leftovers())
            except RunnerUnavailable as error:
                log.warning("the leftovers of the %s runner stay for now: %s", name, error)
        if not here:
            return []
        live = self.do(store.live_attempts([identity.job_id for identity in here]))
        gone = [identity for identity in sorted(here) if live.get(identity.job_id) != identity.attempt]
        for identity in gone:
            try:
                for runner in self._runners.values():
                    runner.stop(identity)
                    runner.remove(identity)
            except RunnerUnavailable as error:
                log.warning("the leftovers of %s stay for now: %s", identity.name, error)
                continue
            directory = RunDirectory(self._root, identity)
            discard(directory.path)
            discard(directory.private)
        return gone

    def do(self, op: Op[T]) -> T:
        if not self._opened:
            self._pool.open()
            self._opened = True
        with self._pool.connection(who="tool run") as connection:
            return run(connection, op)


def runner_of(runners: Mapping[str, Runner], begun: Begun) -> Runner:
    name = "process" if begun.image is None else "container"
    if name not in runners:
        raise JobFailed(f"no {name} runner is set up here, and the tool {begun.tool!r} needs one", retry=False)
    return runners[name]


class Records(Protocol[Kept_co]):
    """Where a run's inputs come from and what keeps the rest: a database, or a server that has one."""

    def put_inputs(self, into: Path) -> list[str]:
        """The input files, into a directory; gives their names."""
        ...

    def log_length(self, stream: str) -> int: ...

    def put_log(self, stream: str, at: int, piece: bytes) -> None: ...

    def note_exit(self, code: int | None) -> None: ...

    def keep(self, directory: RunDirectory, result: contract.Result, code: int | None, most: int) -> Kept_co:
        """The outputs and the artifacts, of which there may be so many bytes."""
        ...


class DatabaseRecords:
    """The records of a run that is done beside its database."""

    def __init__(self, bench: Bench, ctx: JobContext, begun: Begun, artifacts: ArtifactStore) -> None:
        self._do = bench.do
        self._ctx = ctx
        self._run_id = begun.run_id
        self._artifacts = artifacts

    def put_inputs(self, into: Path) -> list[str]:
        inputs = self._do(store.read_inputs(self._run_id))
        for name, content in inputs.items():
            write_whole(into / name, content)
        return sorted(inputs)

    def log_length(self, stream: str) -> int:
        return self._do(store.log_length(self._run_id, self._ctx.attempt, stream))

    def put_log(self, stream: str, at: int, piece: bytes) -> None:
        self._do(store.put_log(self._run_id, self._ctx.attempt, stream, at, piece, *self._ctx.held))

    def note_exit(self, code: int | None) -> None:
        self._do(store.note_exit(self._run_id, code, *self._ctx.held))

    def keep(self, directory: RunDirectory, result: contract.Result, code: int | None, most: int) -> ToolRunResult:
        stored = collect.store_artifacts(directory, result.artifacts, self._artifacts, most)
        with self._ctx.transaction() as connection:
            for artifact in stored:
                run(connection, store.put_artifact(self._run_id, artifact))
            run(connection, store.put_outputs(self._run_id, to_json(result.outputs).decode(), code))
        return ToolRunResult(run_id=self._run_id, artifacts=len(stored))


class Attempt(Generic[Kept_co]):
    """One attempt of one run, from this worker's side."""

    def __init__(
        self, records: Records[Kept_co], ctx: JobContext, begun: Begun, runner: Runner, directory: RunDirectory
    ) -> None:
        self._records = records
        self._ctx = ctx
        self._begun = begun
        self._runner = runner
        self._directory = directory
        self._identity = directory.identity
        self._limits = Limits(**{f.name: begun.limits[f.name] for f in fields(Limits) if f.name in begun.limits})
        self._said: dict[str, int] | None = None

    def run(self) -> Kept_co | Snooze:
        if self._ctx.adopted:
            if self._patiently(lambda: self._runner.find(self._identity)).lost:
                # What a supervisor left behind, and one that is late: it must not begin when nobody waits for it.
                with suppress(RunnerUnavailable):
                    self._runner.stop(self._identity)
                raise AttemptLost("the run was lost with its host or its supervisor")
        else:
            try:
                if self._runner.find(self._identity).lost:
                    self._prepare()
                    self._runner.start(self._spec())
            except SandboxMissing as error:
                raise JobFailed(str(error), retry=False) from None
            except (RunnerUnavailable, OSError, psycopg.OperationalError, PgError) as error:
                log.warning("tool run %d can't begin now: %s", self._begun.run_id, error)
                with suppress(RunnerUnavailable):
                    self._runner.stop(self._identity)
                return Snooze(TRY_AGAIN)
        ended = self._follow()
        self._copy_logs()
        self._patiently(lambda: self._records.note_exit(ended.code))
        refuse(ended)
        result = self._result(ended)
        return self._records.keep(self._directory, result, ended.code, self._limits.output_mb * MEGABYTE)

    def _follow(self) -> Exit:
        """Until it has ended. Who cancels it ends it; who only lost the lease leaves it to the next owner."""
        while True:
            found = self._patiently(lambda: self._runner.wait(self._identity, LOOK_EVERY))
            if self._ctx.cancelled:
                if not self._ctx.lease_lost:
                    self._runner.stop(self._identity)
                    self._copy_logs()
                self._ctx.raise_if_cancelled()
            if found.exit is not None:
                return found.exit
            if found.lost:
                with suppress(RunnerUnavailable):
                    self._runner.stop(self._identity)  # what its supervisor left behind
                raise AttemptLost("the supervisor of the run was lost")
            self._copy_logs()
            self._tell_progress()

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask a runner or a database that may be away for a while: the run goes on meanwhile, and so does its time."""
        while True:
            try:
                return ask()
            except (RunnerUnavailable, psycopg.OperationalError, PgError) as error:
                self._ctx.raise_if_cancelled()
                log.warning("tool run %d can't be followed now: %s", self._begun.run_id, error)
                time.sleep(LOOK_EVERY)

    def _result(self, ended: Exit) -> contract.Result:
        try:
            result = contract.read_result(collect.read_result(self._directory))
        except ContractBroken as error:
            if ended.code:
                raise JobFailed(f"the tool exited with code {ended.code}, and {error}") from None
            raise JobFailed(str(error)) from None
        if result.status == "failed":
            summary = contract.one_line(result.error_summary or "")
            raise JobFailed(summary or "the tool says that it failed, and not why")
        if ended.code:
            raise JobFailed(f"the tool exited with code {ended.code}")
        return result

    def _prepare(self) -> None:
        """The directory as the contract says. What an attempt that never began left there is made anew."""
        directory = self._directory
        discard(directory.path)
        discard(directory.private)
        for path in (directory.private, directory.path, directory.input, directory.output):
            path.mkdir(parents=True, mode=0o700)
        inputs = self._records.put_inputs(directory.input)
        request = contract.Request(
            run_id=self._begun.run_id,
            job_id=self._identity.job_id,
            attempt=self._identity.attempt,
            tool=self._begun.tool,
            version=self._begun.version,
            inputs=self._begun.inputs,
            input_files=inputs,
            timeout_seconds=self._begun.timeout,
        )
        write_whole(directory.request, request.model_dump_json(indent=2).encode())

    def _spec(self) -> Spec:
        return Spec(
            identity=self._identity,
            argv=tuple(self._begun.argv),
            timeout=max(1.0, min(self._ctx.seconds_left, self._begun.timeout) + LEEWAY),
            limits=self._limits,
            image=self._begun.image,
        )

    def _copy_logs(self) -> None:
        """What the run said since the last time, into the records."""
        if self._said is None:
            self._said = self._patiently(lambda: {stream: self._records.log_length(stream) for stream in STREAMS})
        for stream, at in self._said.items():
            with suppress(FileNotFoundError), self._directory.log(stream).open("rb") as file:
                file.seek(at)
                if piece := file.read(contract.LOG_LIMIT - at):
                    self._patiently(partial(self._records.put_log, stream, at, piece))
                    self._said[stream] = at + len(piece)

    def _tell_progress(self) -> None:
        told = collect.read_progress(self._directory)
        if told is not None:
            message = None if told.message is None else contract.one_line(told.message)
            self._ctx.progress(told.done, told.total, message)


def refuse(ended: Exit) -> None:
    """Raise if a run ended by something other than the tool itself; the text may be shown to users."""
    if ended.not_started is not None:
        raise JobFailed(ended.not_started)
    if ended.timed_out:
        raise JobTimedOut("the time-out was reached")
    if ended.stopped:
        raise JobFailed("the tool was stopped")
    if ended.over_limit is not None:
        raise JobFailed(f"the tool was ended: {ended.over_limit}")
    if ended.out_of_memory:
        raise JobFailed("the tool ran out of memory")
    if ended.signal is not None:
        raise JobFailed(f"the tool was ended by signal {ended.signal}")
