"""An agent and a server that fails it: nothing is done twice, nothing is lost, nothing is said of what is lost."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kappa.engine import AsyncJobContext, Cancel, JobContext, JobFailed, Retry, Snooze, attempt
from kappa.engine.errors import LeaseLost
from kappa.engine.fleet import agent as agents
from kappa.engine.fleet import wire
from kappa.engine.fleet.link import Refused
from kappa.engine.fleet.wire import Verdict
from kappa.engine.registry import Registry
from tests.app.patience import becomes
from tests.engine.fleet.camp import Camp
from tests.engine.fleet.sham import CUT, LOSE, Refuse, Sham, sham
from tests.ground import PATIENCE


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that are there for ten thousand workers' sake are short for one."""
    monkeypatch.setattr(agents, "SPREAD", 0.0)
    monkeypatch.setattr(attempt, "BACKOFF_CAP", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[Sham]:
    async with sham() as made:
        yield made


@pytest.fixture
def camp(server: Sham, tmp_path: Path) -> Camp:
    return Camp(server, tmp_path / "work", Registry())


class Gate:
    """A handler that says that it has begun and goes on when it is let."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()
        self.contexts: list[JobContext] = []

    def __call__(self, ctx: JobContext, payload: Any) -> str:
        self.contexts.append(ctx)
        self.begun.set()
        while not self.open.wait(0.01):
            ctx.raise_if_cancelled()
        return "through"


@pytest.fixture
def gate(camp: Camp) -> Gate:
    made = Gate()
    camp.registry.add("gate", made.__call__)
    return made


async def has_begun(gate: Gate) -> None:
    await becomes(gate.begun.is_set, what="the handler has begun")


# What is done


async def test_handlers_in_threads_and_on_the_loop_do_tasks_and_what_begins_is_said_before(
    camp: Camp, server: Sham
) -> None:
    begun: list[int] = []

    @camp.handler("add")
    def add(ctx: JobContext, payload: list[int]) -> int:
        begun.extend(body["task"] for body in server.heard("update_task") if body.get("started"))
        return sum(payload)

    @camp.handler("greet")
    async def greet(ctx: AsyncJobContext, name: str) -> str:
        begun.extend(body["task"] for body in server.heard("update_task") if body.get("started"))
        return f"hello {name}"

    async with camp.agent_at_work():
        first = server.put("add", [1, 2, 3])
        assert (await server.settlement(first)).body["result"] == 6
        second = server.put("greet", "you")
        assert (await server.settlement(second)).body["result"] == "hello you"
    assert begun == [first.task, first.task, second.task]
    assert camp.entries == []


async def test_a_worker_never_holds_more_than_its_slots(camp: Camp, server: Sham) -> None:
    at_once: list[int] = []
    now: set[int] = set()

    @camp.handler("count")
    async def count(ctx: AsyncJobContext) -> None:
        now.add(ctx.job_id)
        at_once.append(len(now))
        await becomes(lambda: len(now) == 3 or not server.queue, what="three are at work")
        now.discard(ctx.job_id)

    tasks = [server.put("count") for _ in range(7)]
    async with camp.agent_at_work(slots=3):
        for task in tasks:
            await server.settlement(task)
    assert max(at_once) == 3
    assert {body["count"] for body in server.heard("request_task")} <= {1, 2, 3}


async def test_a_handler_that_does_not_await_its_checkpoint_fails_for_good(camp: Camp, server: Sham) -> None:
    @camp.handler("careless")
    async def careless(ctx: AsyncJobContext) -> None:
        ctx.checkpoint(1)  # pyright: ignore[reportUnusedCoroutine]

    task = server.put("careless")
    async with camp.agent_at_work():
        settled = await server.settlement(task)
    assert (settled.call, settled.body["outcome"]) == ("fail_task", "fatal")
    assert "`await ctx.checkpoint(...)`" in settled.body["summary"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Retry(timedelta(seconds=5), "later"), {"outcome": "failed", "after": 5.0, "summary": "later"}),
        (Snooze(timedelta(seconds=7)), {"outcome": "snooze", "after": 7.0, "summary": ""}),
        (Cancel("enough"), {"outcome": "cancelled", "summary": "enough"}),
        (JobFailed("no such page"), {"outcome": "failed", "summary": "no such page"}),
        (JobFailed("never", retry=False), {"outcome": "fatal", "summary": "never"}),
        (RuntimeError("secret"), {"outcome": "failed", "summary": "the handler failed with RuntimeError"}),
        (SystemExit(3), {"outcome": "failed", "summary": "the handler failed with SystemExit"}),
        (object(), {"outcome": "fatal"}),
    ],
)
async def test_every_outcome_has_its_word(camp: Camp, server: Sham, value: Any, said: dict[str, Any]) -> None:
    @camp.handler("end")
    def end(ctx: JobContext) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    task = server.put("end")
    async with camp.agent_at_work():
        settled = await server.settlement(task)
    assert settled.call == "fail_task"
    assert {name: settled.body[name] for name in said} == said
    assert ("detail" in settled.body) == (isinstance(value, BaseException))


async def test_the_last_attempt_that_fails_is_final_and_a_payload_that_is_none_is_refused(
    camp: Camp, server: Sham
) -> None:
    @camp.handler("number")
    def number(ctx: JobContext, payload: int) -> int:
        raise RuntimeError(ctx.attempt)

    last = server.put("number", 1, attempt=3)
    bad = server.put("number", "many")
    async with camp.agent_at_work():
        assert (await server.settlement(last)).body["outcome"] == "fatal"
        settled = await server.settlement(bad)
    assert settled.body["outcome"] == "fatal"
    assert "'number' can't take this payload" in settled.body["summary"]


async def test_progress_checkpoints_and_the_facts_of_a_context(camp: Camp, server: Sham) -> None:
    @camp.handler("walk")
    def walk(ctx: JobContext, payload: str) -> Any:
        before = ctx.last_checkpoint()
        ctx.checkpoint({"at": 2})
        ctx.progress(1, 4, "one of four")
        return [before, ctx.last_checkpoint(), ctx.attempt, ctx.max_attempts, ctx.lane, ctx.kind, ctx.job_id]

    task = server.put("walk", "far", checkpoint={"at": 1}, attempt=2)
    async with camp.agent_at_work():
        settled = await server.settlement(task)
        assert settled.body["result"] == [{"at": 1}, {"at": 2}, 2, 3, "sham", "walk", task.task]
    updates = server.heard("update_task", task)
    assert [body["checkpoint"] for body in updates if "checkpoint" in body] == [{"at": 2}]


async def test_the_latest_progress_arrives(camp: Camp, server: Sham) -> None:
    gates = threading.Event()

    @camp.handler("walk")
    def walk(ctx: JobContext) -> None:
        for step in range(1, 101):
            ctx.progress(step, 100, f"step {step}")
        gates.wait(PATIENCE)

    task = server.put("walk")
    async with camp.agent_at_work():
        await becomes(
            lambda: [body for body in server.heard("update_task", task) if body.get("done") == 100], what="the last one"
        )
        gates.set()
        await server.settlement(task)
    assert len(server.heard("update_task", task)) < 50, "not every step is a call"


@pytest.mark.parametrize("what", ["transaction", "spawn", "gather"])
async def test_what_needs_a_database_is_refused_with_a_reason(camp: Camp, server: Sham, what: str) -> None:
    @camp.handler("thread")
    def in_thread(ctx: JobContext) -> None:
        if what == "transaction":
            with ctx.transaction():
                pass
        else:
            getattr(ctx, what)("kind")

    @camp.handler("loop")
    async def on_loop(ctx: AsyncJobContext) -> None:
        if what == "transaction":
            async with ctx.transaction():
                pass
        else:
            await getattr(ctx, what)("kind")

    tasks = [server.put("thread"), server.put("loop")]
    async with camp.agent_at_work():
        for task in tasks:
            assert f"a fleet worker has no database: {what}()" in (await server.settlement(task)).body["summary"]


# Calls that get lost


@pytest.mark.parametrize("fault", [LOSE, CUT])
async def test_a_question_whose_answer_is_lost_is_put_again_as_the_same(camp: Camp, server: Sham, fault: str) -> None:
    done: list[int] = []

    @camp.handler("note")
    def note(ctx: JobContext) -> None:
        done.append(ctx.job_id)

    task = server.put("note")
    server.fail("request_task", fault, fault)
    async with camp.agent_at_work():
        await server.settlement(task)
    first, *again = [body["request_id"] for body in server.heard("request_task")]
    assert again[:2] == [first, first]
    assert first not in again[2:-1]  # the last is the end's
    assert done == [task.task]


@pytest.mark.parametrize("call", ["hello", "update_task", "complete_task", "beat"])
@pytest.mark.parametrize("fault", [LOSE, CUT, Refuse(503, "busy", 0.01), Refuse(503, "unavailable"), Refuse(502, "x")])
async def test_any_call_may_fail_and_is_said_again(camp: Camp, server: Sham, call: str, fault: Any) -> None:
    done: list[int] = []

    @camp.handler("note")
    def note(ctx: JobContext) -> None:
        done.append(ctx.job_id)

    task = server.put("note")
    server.fail(call, fault, fault, fault)
    async with camp.agent_at_work():
        await server.settlement(task)
        await server.hears(call, times=4)
        await becomes(lambda: camp.entries == [], what="the journal is empty")
    assert done == [task.task]


async def test_a_settlement_outlives_a_server_that_is_away(camp: Camp, server: Sham, gate: Gate) -> None:
    task = server.put("gate")
    async with camp.agent_at_work():
        await has_begun(gate)
        await server.stop()
        gate.open.set()
        await becomes(lambda: [one for one in camp.entries if 'undelivered":{' in one.read_text()], what="it is kept")
        await server.start()
        assert (await server.settlement(task)).body["result"] == "through"
        await becomes(lambda: camp.entries == [], what="the journal is empty")


async def test_a_result_that_waits_for_its_server_leaves_the_other_slots_alone(
    camp: Camp, server: Sham, gate: Gate
) -> None:
    server.fail("complete_task", *[Refuse(503, "unavailable", 0.01)] * 1000)
    first = server.put("gate")
    async with camp.agent_at_work(slots=2):
        await has_begun(gate)
        gate.open.set()
        await server.hears("complete_task", first, times=2)
        second = server.put("gate")
        await server.hears("complete_task", second)
        assert {body["count"] for body in server.heard("request_task")} == {2, 1}
        server.faults["complete_task"].clear()
        await server.settlement(first)
        await server.settlement(second)


async def test_what_the_server_can_not_keep_fails_and_says_why(camp: Camp, server: Sham) -> None:
    @camp.handler("large")
    def large(ctx: JobContext) -> str:
        return "much"

    server.fail("complete_task", Refuse(413, "too_large"), Refuse(413, "too_large"))
    task = server.put("large")
    async with camp.agent_at_work():
        settled = await server.settlement(task)
    assert (settled.call, settled.body["outcome"]) == ("fail_task", "fatal")
    assert settled.body["summary"] == "what the handler gave can't be kept: it is too_large"


async def test_a_token_that_does_not_count_ends_the_agent(camp: Camp, server: Sham, gate: Gate) -> None:
    server.put("gate")
    with pytest.raises(Refused) as refused:
        async with camp.agent_at_work():
            await has_begun(gate)
            # Again and again: of one that is answered late the agent hears nothing.
            server.fail("beat", *[Refuse(401, "not_authenticated", 60.0)] * 1000)
            await camp.ended()
    assert refused.value.status == 401
    assert server.settled.keys(), "what it held is given back if the server listens"


@pytest.mark.parametrize("accepts", [True, False])
async def test_a_kinds_own_stale_timeout_is_told_to_a_server_that_knows_of_it(
    camp: Camp, server: Sham, accepts: bool
) -> None:
    server.accepts_stale_timeout = accepts  # a server of before refuses fields that it doesn't know
    own = {"usual": None, "patient": timedelta(hours=2), "silent": timedelta.max}
    for kind, stale_timeout in own.items():
        camp.registry.add(kind, lambda ctx: None, stale_timeout=stale_timeout)
    tasks = {kind: server.put(kind) for kind in own}
    async with camp.agent_at_work(slots=3):
        for task in tasks.values():
            await server.settlement(task)
    told = {kind: server.heard("update_task", task)[0].get("stale_timeout") for kind, task in tasks.items()}
    assert told == ({"usual": None, "patient": 7200, "silent": wire.NO_TIMEOUT} if accepts else dict.fromkeys(own))


async def test_a_task_without_a_time_out_has_endless_time(camp: Camp, server: Sham) -> None:
    left: list[float] = []
    camp.registry.add("endless", lambda ctx: left.append(ctx.seconds_left))
    task = server.put("endless", seconds_left=wire.NO_TIMEOUT)
    async with camp.agent_at_work():
        await server.settlement(task)
    assert left == [math.inf]


async def test_another_version_of_the_wire_is_refused(camp: Camp, server: Sham, gate: Gate) -> None:
    server.protocol = 2
    with pytest.raises(agents.OtherProtocol, match="version 2"):
        async with camp.agent_at_work():
            await camp.ended()


# What the server says of tasks


async def test_a_task_that_is_lost_before_it_begins_is_not_begun(camp: Camp, server: Sham, gate: Gate) -> None:
    server.fail("update_task", Refuse(409, "lost"))
    lost = server.put("gate")
    async with camp.agent_at_work():
        await server.hears("update_task", lost)
        await becomes(lambda: camp.entries == [], what="it is forgotten")
    assert gate.contexts == []
    assert server.settled == {}


async def test_a_lost_task_is_stopped_and_nothing_more_is_said_of_it(camp: Camp, server: Sham) -> None:
    seen: list[Any] = []

    @camp.handler("stubborn")
    def stubborn(ctx: JobContext) -> str:
        while not ctx.lease_lost:
            threading.Event().wait(0.01)
        for word in (lambda: ctx.progress(1), lambda: ctx.checkpoint(1), ctx.last_checkpoint, ctx.raise_if_cancelled):
            try:
                word()
            except LeaseLost as error:
                seen.append(error)
        return "nobody wants it"

    @camp.handler("tender")
    async def tender(ctx: AsyncJobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    tasks = [server.put("stubborn"), server.put("tender")]
    async with camp.agent_at_work(slots=2):
        for task in tasks:
            await server.hears("update_task", task)
        server.held.clear()
        await becomes(lambda: len(seen) == 5, what="both have heard")
        await becomes(lambda: camp.entries == [], what="both are forgotten")
    assert server.settled == {}
    assert [one.call for one in server.said if one.body.get("task")] == ["update_task"] * 2


async def test_a_cancelled_task_ends_as_cancelled(camp: Camp, server: Sham, gate: Gate) -> None:
    task = server.put("gate")
    async with camp.agent_at_work():
        await has_begun(gate)
        server.notices[task.task] = wire.Notice(task=task.task, verdict=Verdict.CANCEL, reason="the wrong one")
        settled = await server.settlement(task)
    assert {**settled.body, "call": settled.call} == {
        "call": "fail_task", "worker": "camp", "task": task.task, "token": task.token, "outcome": "cancelled",
        "summary": "the wrong one",
    }  # fmt: skip


async def test_a_task_that_was_cancelled_before_it_began_is_not_begun(camp: Camp, server: Sham, gate: Gate) -> None:
    task = server.put("gate")
    server.cancel[task.task] = "too late"
    async with camp.agent_at_work():
        assert (await server.settlement(task)).body["outcome"] == "cancelled"
    assert gate.contexts == []


async def test_a_cancellation_that_comes_with_a_report_is_heard(camp: Camp, server: Sham) -> None:
    @camp.handler("walk")
    def walk(ctx: JobContext) -> None:
        step = 0
        while True:
            step += 1
            ctx.progress(step)
            ctx.raise_if_cancelled()
            threading.Event().wait(0.01)

    server.beat_seconds = 60
    task = server.put("walk")
    async with camp.agent_at_work():
        await server.hears("update_task", task, times=2)
        server.cancel[task.task] = "enough"
        assert (await server.settlement(task)).body["summary"] == "enough"


@pytest.mark.parametrize("kind", ["thread", "loop"])
async def test_the_agent_keeps_the_time_out(camp: Camp, server: Sham, kind: str) -> None:
    over = threading.Event()

    @camp.handler("thread")
    def in_thread(ctx: JobContext) -> str:
        over.wait(PATIENCE)
        return "late"

    @camp.handler("loop")
    async def on_loop(ctx: AsyncJobContext) -> None:
        await asyncio.Event().wait()

    task = server.put(kind, seconds_left=0.05)
    async with camp.agent_at_work():
        settled = await server.settlement(task)
        over.set()
    assert (settled.body["outcome"], settled.body["summary"]) == ("timed_out", "the time-out was reached")


async def test_a_task_that_the_server_timed_out_is_stopped_in_silence(camp: Camp, server: Sham, gate: Gate) -> None:
    task = server.put("gate")
    async with camp.agent_at_work():
        await has_begun(gate)
        server.notices[task.task] = wire.Notice(task=task.task, verdict=Verdict.TIMED_OUT)
        await becomes(lambda: camp.entries == [], what="it is forgotten")
    assert server.settled == {}
    assert gate.contexts[0].cancelled


async def test_beats_come_when_idle_and_name_every_task_that_has_begun(camp: Camp, server: Sham, gate: Gate) -> None:
    async with camp.agent_at_work(slots=2):
        assert (await server.hears("beat")).get("tasks", []) == []
        tasks = [server.put("gate"), server.put("gate")]
        wanted = [{"task": task.task, "token": task.token} for task in tasks]

        def all_named() -> bool:
            return any(sorted(body["tasks"], key=lambda one: one["task"]) == wanted for body in server.heard("beat"))

        await becomes(all_named, what="both are named")
        gate.open.set()
        for task in tasks:
            await server.settlement(task)


# The end


async def test_a_drain_lets_tasks_end_and_asks_for_no_more(camp: Camp, server: Sham, gate: Gate) -> None:
    task = server.put("gate")
    async with camp.agent_at_work(slots=2) as agent:
        await has_begun(gate)
        agent.stop()
        await becomes(lambda: server.heard("request_task")[-1]["wait"] == 0, what="it asks for the last time")
        late = server.put("gate")
        gate.open.set()
        await camp.ended()
    assert server.settled[task.task, task.token].call == "complete_task"
    assert list(server.queue) == [late]


async def test_what_does_not_end_within_the_grace_is_given_back(camp: Camp, server: Sham, gate: Gate) -> None:
    @camp.handler("loop")
    async def on_loop(ctx: AsyncJobContext) -> None:
        await asyncio.Event().wait()

    tasks = [server.put("gate"), server.put("loop")]
    async with camp.agent_at_work(slots=2, grace=0.01) as agent:
        await has_begun(gate)
        await server.hears("update_task", tasks[1])
        agent.stop()
        await camp.ended()
    for task in tasks:
        settled = server.settled[task.task, task.token]
        assert (settled.call, settled.body["started"]) == ("release_task", True)
    assert camp.entries == []


async def test_tasks_whose_answer_nobody_waited_for_are_given_back(camp: Camp, server: Sham, gate: Gate) -> None:
    server.fail("request_task", LOSE)
    server.fail("request_task", *[CUT] * 1000)
    task = server.put("gate")
    async with camp.agent_at_work() as agent:
        await server.hears("request_task", times=3)
        agent.stop()
        server.faults["request_task"].clear()
        await camp.ended()
    settled = server.settled[task.task, task.token]
    assert (settled.call, settled.body["started"]) == ("release_task", False)
    assert gate.contexts == []


async def test_once_ends_when_there_is_nothing_to_do(camp: Camp, server: Sham) -> None:
    @camp.handler("note")
    def note(ctx: JobContext) -> None:
        pass

    tasks = [server.put("note") for _ in range(5)]
    async with camp.agent_at_work(slots=2, once=True):
        await camp.ended()
    assert all(server.settled[task.task, task.token].call == "complete_task" for task in tasks)


async def test_a_kind_that_nobody_here_does_is_left_alone(camp: Camp, server: Sham, gate: Gate) -> None:
    strange = server.put("strange")
    known = server.put("gate")
    gate.open.set()
    async with camp.agent_at_work(slots=2):
        await server.settlement(known)
    assert (strange.task, strange.token) in server.held
