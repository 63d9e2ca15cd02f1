"""The engine from end to end."""

from kappa.engine import Client, Engine, JobContext, JobState, Lane
from kappa.engine.testing import Heard, drain


async def test_a_job_goes_in_runs_and_comes_out_with_its_result(engine: Engine, heard: Heard) -> None:
    engine.lane(Lane("default", kinds=("greet",), max_slots=4))

    @engine.job("greet")
    def greet(ctx: JobContext, name: str) -> str:
        return f"hello {name}, attempt {ctx.attempt}"

    engine.install()
    with engine.client() as client:
        job = client.enqueue("greet", "world")
        await drain(engine)
        done = client.show(job.id)
    assert (done.state, done.result, done.attempt) == (JobState.SUCCEEDED, "hello world, attempt 1", 1)


def test_counts_are_by_lane_and_state(client: Client) -> None:
    client.enqueue("ingestion")
    client.enqueue("tool_run")
    assert client.counts() == {("interactive", JobState.QUEUED): 1, ("tools", JobState.QUEUED): 1}
