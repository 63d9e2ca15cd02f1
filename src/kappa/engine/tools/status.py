"""What a run of a tool says of its job: the job's state, but `queued` where the job is `scheduled`.

While the job lives, a run's status is read from the job (the view `all_tool_runs`); its end is kept in
`tool_run_outcomes`, written in the job's own transaction. This module names the values.
"""

from enum import StrEnum

from kappa.engine.model import JobState


class ToolRunStatus(StrEnum):
    """Equal to its name, as in `run.status == "queued"`. A run that backs off is queued, with `available_at`."""

    AWAITING_APPROVAL = "awaiting_approval"
    """Only where a program registers the kind with `approval=True`."""
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return JobState(self).terminal
