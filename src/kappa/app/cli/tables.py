"""How jobs, lanes, workers and people look in a terminal."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kappa.app.api.measure_schemas import KeptArtifact, MergeView, TypeView
from kappa.app.api.schedule_schemas import ScheduleItem, ScheduleView
from kappa.app.api.schemas import (
    AuditEntry,
    FleetWorkerView,
    JobView,
    LaneView,
    PermissionView,
    RoleView,
    StatusView,
    TokenView,
    UserView,
    WorkerView,
)
from kappa.app.cli import show
from kappa.engine import JobState
from kappa.engine.tools import ToolRunStatus

LIVE = (JobState.AWAITING_APPROVAL, JobState.SCHEDULED, JobState.QUEUED, JobState.RUNNING)
CELLS = 16
MOST = 1_000
"""Characters of a payload or a result."""

_COLOURS = {
    JobState.AWAITING_APPROVAL: "magenta",
    JobState.SCHEDULED: "blue",
    JobState.QUEUED: "cyan",
    JobState.RUNNING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.TIMED_OUT: "red",
    JobState.CANCELLED: "dim",
}


def when(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def span(seconds: float) -> str:
    """A duration as people say it, and as `kg` reads it."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def shortened(value: Any) -> str:
    """As much of a value as a person reads; a list of a thousand names is for `--json`."""
    text = compact(value)
    return text if len(text) <= MOST else f"{text[:MOST]}… ({len(text):,} characters; --json has them all)"


def cell(value: object, style: str = "") -> Text:
    return Text("-" if value is None else show.printable(value), style=style)


def state(of: JobState | ToolRunStatus) -> Text:
    return Text(of.value, style=_COLOURS[JobState(of)])


def bar(used: int, slots: int) -> Text:
    """A little bar: a cell is a slot, or a share of them where there are many."""
    cells = min(slots, CELLS)
    full = min(cells, -(-used * cells // slots)) if slots else 0
    colour = "red" if used > slots else "yellow" if used == slots else "green"
    return Text.assemble(("■" * full, colour), ("□" * (cells - full), "dim"), f" {used}/{slots}")


def progress(job: JobView) -> str:
    """How far it got, or why it ended."""
    if job.state is JobState.SUCCEEDED:
        return ""
    if job.state.terminal:
        return job.error_summary or job.reason or ""
    if job.progress is None:
        return ""
    done, total, message = job.progress.done, job.progress.total, job.progress.message
    figures = "" if done is None else f"{done:g}" if total is None else f"{done:g}/{total:g}"
    return " ".join(part for part in (figures, message) if part)


def jobs(found: Iterable[JobView]) -> Table:
    rows = show.table("id", "state", "kind", "lane", "priority", "try", "submitted", "by", "how far")
    for job in found:
        rows.add_row(
            str(job.id), state(job.state), cell(job.kind), cell(job.lane), str(job.priority),
            f"{job.attempt}/{job.max_attempts}", when(job.created_at), cell(job.submitted_by), cell(progress(job)),
        )  # fmt: skip
    return show.fitted(rows, spare=("priority", "by", "lane", "try"), last=10)


def job_fields(job: JobView) -> dict[str, str]:
    """A job whole, without what it doesn't have."""
    facts: dict[str, object] = {
        "id": job.id,
        "kind": job.kind,
        "lane": job.lane,
        "state": job.state.value,
        "how far": None if job.state.terminal else progress(job),
        "reason": job.reason,
        "priority": job.priority,
        "try": f"{job.attempt} of {job.max_attempts}",
        "payload": shortened(job.payload),
        "result": None if job.result is None else shortened(job.result),
        "estimate": None if job.estimate is None else compact(job.estimate),
        "submitted": f"{when(job.created_at)} by {job.submitted_by or 'nobody'}",
        "approved": None if job.approved_at is None else f"{when(job.approved_at)} by {job.approved_by or 'its kind'}",
        "expires": None if job.state is not JobState.AWAITING_APPROVAL else when(job.expires_at),
        "not before": None if job.run_at is None else when(job.run_at),
        "started": None if job.started_at is None else when(job.started_at),
        "finished": None if job.finished_at is None else when(job.finished_at),
        "runs at": job.lease_owner,
        "time-out": None if job.timeout is None else span(job.timeout),
        "dedup key": job.dedup_key,
        "parent": job.parent_id,
        "retry of": job.retry_of,
        "earlier error" if job.state is JobState.SUCCEEDED else "error": job.error_summary,
        "traceback": job.error_detail,
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def lane_rows(found: Sequence[LaneView]) -> Table:
    """What the lanes are set to."""
    rows = show.table("lane", "", "slots", "poll", "lease", "stale", "executor", "kinds")
    for lane in found:
        rows.add_row(
            cell(lane.name), _open(lane), bar(lane.slots_used, lane.max_slots), f"{lane.poll_interval_ms} ms",
            span(lane.lease_ttl), span(lane.stale_timeout), lane.executor.value, cell(", ".join(lane.kinds) or None),
        )  # fmt: skip
    return show.fitted(rows, spare=("stale", "lease", "poll", "executor"), last=20)


def status(now: StatusView) -> RenderableType:
    """Who leads, who works, and what the lanes have to do."""
    heading = Text.assemble(
        ("leader  ", "dim"), show.printable(now.leader) if now.leader else Text("nobody leads", style="red"),
        ("    version  ", "dim"), show.printable(now.version),
    )  # fmt: skip
    depth = show.table("lane", "", "slots", *(name.value for name in LIVE))
    for lane in now.lanes:
        counts = [lane.jobs.get(name, 0) for name in LIVE]
        shown = [state_count(name, count) for name, count in zip(LIVE, counts, strict=True)]
        served = any(lane.name in worker.lanes for worker in now.workers)
        stands = _open(lane) if served or lane.held_by or not lane.enabled else Text("unserved", style="dim")
        depth.add_row(cell(lane.name), stands, bar(lane.slots_used, lane.max_slots), *shown)
    nobody = Text("no worker runs: nothing is claimed", style="red")
    return Group(heading, "", depth, "", _workers(now.workers) if now.workers else nobody)


def state_count(name: JobState, count: int) -> Text:
    return Text(str(count), style=_COLOURS[name] if count else "dim")


def _workers(found: Sequence[WorkerView]) -> Table:
    rows = show.table("worker", "host", "pid", "running", "lanes", "since", "seen")
    for worker in found:
        rows.add_row(
            cell(worker.owner, "bold" if worker.leads else ""), cell(worker.host), str(worker.pid),
            str(worker.running), cell(", ".join(worker.lanes) or None), when(worker.started_at), when(worker.seen_at),
        )  # fmt: skip
    return show.fitted(rows, spare=("since", "host", "pid"), last=19)


def _open(lane: LaneView) -> Text:
    if lane.held_by is not None:
        return Text(f"held by job {lane.held_by}", "yellow")
    return Text("open", style="green") if lane.enabled else Text("draining" if lane.slots_used else "drained", "yellow")


def schedules(found: Iterable[ScheduleItem]) -> Table:
    rows = show.table("schedule", "state", "when", "time zone", "kind", "next", "last", "job", "error")
    for one in found:
        rows.add_row(
            cell(one.name), _schedule_state(one), cell(one.cron), cell(one.timezone), cell(one.kind), when(one.next_at),
            when(one.last_at), cell(one.last_job), cell(one.error or ""),
        )  # fmt: skip
    return show.fitted(rows, spare=("job", "last", "time zone"), last=10)


def _schedule_state(one: ScheduleItem) -> Text:
    if not one.enabled:
        return Text("paused", style="yellow")
    return Text(f"failing ({one.failures})", style="red") if one.failures else Text("on", style="green")


def schedule_fields(one: ScheduleView) -> dict[str, str]:
    """A schedule whole, without what it doesn't have."""
    facts: dict[str, object] = {
        "schedule": one.name, "state": _schedule_state(one).plain, "when": f"{one.cron} ({one.timezone})",
        "kind": one.kind, "payload": shortened(one.payload), "priority": one.priority, "missed": one.missed,
        "next": "\n".join(f"{when(at)} ({at.astimezone():%A})" for at in one.next_times) or None,
        "last": when(one.last_at) if one.last_at else None, "last job": one.last_job, "error": one.error,
        "tried again": when(one.retry_at) if one.retry_at else None,
        "declared": "by the server: it can be paused, not deleted" if one.is_declared else None,
    }  # fmt: skip
    return {name: str(value) for name, value in facts.items() if value is not None}


def audit(found: Iterable[AuditEntry]) -> Table:
    rows = show.table("id", "at", "who", "did", "to", "detail")
    for entry in found:
        detail = ", ".join(f"{name}={compact(value)}" for name, value in entry.detail.items() if value is not None)
        rows.add_row(str(entry.id), when(entry.at), *map(cell, (entry.who, entry.action, entry.target, detail)))
    return rows


def tokens(found: Iterable[TokenView]) -> Table:
    rows = show.table("id", "user", "name", "state", "made", "expires", "last used", "may")
    now = datetime.now().astimezone()
    for token in found:
        over = token.expires_at is not None and token.expires_at <= now
        stands = "revoked" if token.revoked_at else "expired" if over else "valid"
        may = "all that the user may" if token.scopes is None else ", ".join(token.scopes) or "nothing"
        may += _limits(token)
        style = "green" if stands == "valid" else "dim"
        rows.add_row(
            str(token.id), cell(token.user), cell(token.name), Text(stands, style=style), when(token.created_at),
            "never" if token.expires_at is None else when(token.expires_at),
            when(token.last_used_at), cell(may),
        )  # fmt: skip
    return show.fitted(rows, spare=("made", "last used"), last=20)


def _limits(token: TokenView) -> str:
    found = [] if token.kinds is None else ["/".join(token.kinds)]
    found += [] if token.machines is None else [f"{token.machines} machines"]
    found += [] if token.requests_per_minute is None else [f"{token.requests_per_minute} calls a minute"]
    return f" ({', '.join(found)})" if found else ""


def fleet(found: Iterable[FleetWorkerView]) -> Table:
    rows = show.table("worker", "tasks", "slots", "cores", "memory", "labels", "kinds", "token", "seen")
    for one in found:
        rows.add_row(
            cell(one.worker), str(one.running), str(one.slots), f"{one.cores:g}",
            f"{one.memory_mb} MB" if one.memory_mb else "", cell(", ".join(one.labels)), cell(", ".join(one.kinds)),
            str(one.token_id), when(one.seen_at),
        )  # fmt: skip
    return show.fitted(rows, spare=("memory", "cores", "token", "labels"), last=19)


def users(found: Iterable[UserView]) -> Table:
    rows = show.table("name", "state", "password", "roles", "since")
    for user in found:
        enabled = Text("enabled", style="green") if user.enabled else Text("disabled", style="dim")
        has = "yes" if user.has_password else "no"
        rows.add_row(cell(user.name), enabled, has, cell(", ".join(user.roles) or None), when(user.created_at))
    return rows


def roles(found: Iterable[RoleView]) -> Table:
    rows = show.table("role", "made by", "users", "permissions")
    for role in found:
        may = ", ".join(role.permissions) or None
        rows.add_row(cell(role.name), "Kappa" if role.builtin else "you", str(role.users), cell(may))
    return rows


def permissions(found: Iterable[PermissionView]) -> Table:
    rows = show.table("permission", "lets one")
    for permission in found:
        rows.add_row(cell(permission.name), cell(permission.meaning))
    return rows


def types(found: Sequence[TypeView]) -> Table:
    rows = show.table("type", "category", "relations", "stance", "targets are", "")
    for one in found:
        merged = f"→ {one.merged_into}" if one.merged_into else ""
        note = merged or (f"or {one.best}?" if one.ambiguous and one.best else "")
        stance = f"{one.stance:+.2f}" if one.stance else ""
        rows.add_row(
            cell(one.name, "bold"), cell(one.category), str(one.relations),
            cell(f"{stance} by words" if stance and one.stance_by == "words" else stance),
            cell(one.epistemic or ""), cell(note, "dim"),
        )  # fmt: skip
    return rows


def merges(found: Sequence[MergeView]) -> Table:
    rows = show.table("merge", "type", "into", "alike", "relations", "by", "when", "")
    for one in found:
        rows.add_row(
            str(one.id), cell(one.merged, "bold"), cell(one.survivor),
            "" if one.similarity is None else f"{one.similarity:.2f}", str(one.relations), cell(one.made_by),
            when(one.made_at), cell(f"undone by {one.undone_by}" if one.undone_at else "", "dim"),
        )  # fmt: skip
    return rows


def artifacts(found: Sequence[KeptArtifact]) -> Table:
    rows = show.table("id", "kind", "name", "ontology", "epoch", "bytes", "made")
    for one in found:
        rows.add_row(
            str(one.id), cell(one.kind, "bold"), cell(one.name), cell(one.ontology or ""), str(one.as_of_epoch),
            "" if one.size is None else str(one.size), when(one.created_at),
        )  # fmt: skip
    return show.fitted(rows, spare=("epoch", "bytes", "ontology"), last=19)
