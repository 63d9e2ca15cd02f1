"""Everything that agents are offered. A new group of tools is a module with `offer`, and one more name here."""

from kappa.app.mcp import graph, ingest, jobs, ontologies, schedules, tools, workers
from kappa.app.mcp.api import Api
from kappa.app.mcp.server import Server

GROUPS = (graph, ontologies, ingest, jobs, schedules, tools, workers)

INSTRUCTIONS = """\
Kappa keeps a knowledge graph: concepts, relations between them, and the quotes that speak for both. Begin with search;
concept shows one with its evidence, related what is around it, path how two are connected, polarity where concepts
stand between two others. An answer says whether it is complete. ingest adds a text to it, by a job. Jobs of the kinds
projection and polarity leave an artifact, which read_result reads.
Kappa runs durable jobs: each has a kind, waits in that kind's lane and is done by a worker, once, even if machines die.
Enqueue with enqueue_job, then wait_for_job; a job in the state awaiting_approval goes on only after approve_job.
list_schedules shows which jobs are enqueued when, by cron expressions; edit_schedule also pauses and resumes.
Kappa runs tools in sandboxes: `tools` lists them, run_tool asks for a run, wait_for_tool_run sees it through.
The resource workers/status shows the lanes, the kinds each of them does, and who works.
What you may do depends on the token of this connection; a refusal names the permission that is missing."""


def build(api: Api) -> Server:
    server = Server(INSTRUCTIONS)
    for group in GROUPS:
        group.offer(server, api)
    return server
