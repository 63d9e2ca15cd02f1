"""What an agent makes of the journal that it finds: an earlier one crashed, or could not say its last words.

A tool run that a runner still finds, under a lease that still stands, is followed to its end. A settlement that nobody
heard is said. Everything else is given back, and what is somebody else's by now is ended here.
"""

import logging

from kappa.engine.fleet import wire
from kappa.engine.fleet.crew import Crew
from kappa.engine.fleet.journal import Entry
from kappa.engine.fleet.wire import Verdict
from kappa.engine.tools import Identity

log = logging.getLogger(__name__)


async def recover(crew: Crew) -> None:
    entries = await crew.threads.submit(crew.journal.read)
    if entries:
        log.info("%d tasks are left from before", len(entries))
    # Of what was held under another name, or of another server, nobody here could speak.
    place = crew.link.place
    ours = [entry for entry in entries if (entry.server, entry.worker) == (place.url, place.worker)]
    verdicts = await _verdicts(crew, ours)
    keep: set[Identity] = set()
    for entry in entries:
        if await _resume(crew, entry, verdicts.get(entry.task.task), is_ours=entry in ours):
            keep.add(Identity(entry.task.task, entry.task.attempt))
    if (bench := crew.bench) is not None:
        await crew.threads.submit(lambda: bench.sweep(keep))


async def _resume(crew: Crew, entry: Entry, notice: wire.Notice | None, *, is_ours: bool) -> bool:
    """Whether its run goes on."""
    task = entry.task.model_copy(update={"seconds_left": entry.seconds_left})
    if task.tool is not None:
        task = task.model_copy(update={"payload": {"run_id": task.tool.run_id}})
    if crew.registry.find(task.kind) is None:
        log.warning("task %d from before is of the kind %s: it is left to its lease", task.task, task.kind)
        await crew.threads.submit(lambda: crew.journal.remove(entry))
        return False
    duty = crew.duty(entry, task)
    if not is_ours or (notice is not None and notice.verdict is not Verdict.CANCEL):
        await duty.drop()
    elif entry.undelivered is not None:
        crew.begin(duty, duty.deliver(entry.undelivered))
    elif entry.begun_at is not None and await _still_there(crew, task):
        log.info("task %d still runs here: it is followed to its end", task.task)
        if notice is not None:
            duty.hear(notice.verdict, notice.reason)
        crew.begin(duty, duty.run())
        return True
    else:
        await duty.give_back()
    return False


async def _still_there(crew: Crew, task: wire.Task) -> bool:
    bench = crew.bench
    return bench is not None and task.tool is not None and await crew.threads.submit(lambda: bench.find(task))


async def _verdicts(crew: Crew, entries: list[Entry]) -> dict[int, wire.Notice]:
    """What the server says of tasks that had begun. To the others a beat would be their start."""
    found: dict[int, wire.Notice] = {}
    begun = [entry.held for entry in entries if entry.begun_at is not None]
    for at in range(0, len(begun), wire.MAX_TASKS_PER_BEAT):
        beat = wire.Beat(worker=crew.link.place.worker, tasks=begun[at : at + wire.MAX_TASKS_PER_BEAT])
        said = await crew.link.until_answered("beat", beat, wire.Beaten)
        assert said is not None
        found |= {notice.task: notice for notice in said.notices}
    return found
