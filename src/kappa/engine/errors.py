"""What the engine refuses, and why.

KappaError
└── EngineError
    ├── UnknownKind         no handler, or no lane, for a kind of job
    ├── BadPayload          a payload or result that its type refuses; no job was made
    ├── JobNotFound
    ├── IllegalTransition   a job is in a state from which there is no way to the one asked for
    ├── LaneError           a lane that can't be as it was asked to be
    ├── LanesHeld           another job holds lanes, beside which nothing else may run
    ├── ScheduleError       a schedule that can't be understood
    │   ├── ScheduleNotFound
    │   └── ScheduleExists
    ├── LeaseLost           another owner has the job, or nobody; this one may write nothing more
    ├── JobCancelled        raised in a handler, by `raise_if_cancelled`, when it should stop
    ├── JobFailed           raised by a handler: failed, and its text may be shown to users
    ├── JobTimedOut         raised by an adoptable handler: what it began elsewhere ran out of time
    └── AttemptLost         raised by an adoptable handler: what it began elsewhere can't be found any more
"""

from kappa.pg import KappaError


class EngineError(KappaError):
    """Something that the engine refuses."""


class UnknownKind(EngineError):
    """No handler, or no lane, for a kind of job."""


class BadPayload(EngineError):
    """A payload or result that its type refuses."""


class JobNotFound(EngineError):
    """There is no such job, or it was deleted after its retention."""


class IllegalTransition(EngineError):
    """There is no way from one state to another."""

    def __init__(self, job_id: int, now: str, wanted: str) -> None:
        super().__init__(f"job {job_id} is {now} and can't be {wanted}")
        self.now = now
        self.wanted = wanted


class LaneError(EngineError):
    """A lane that can't be as it was asked to be."""


class LanesHeld(EngineError):
    """Another job holds lanes."""


class ScheduleError(EngineError):
    """A schedule that can't be understood."""


class ScheduleNotFound(ScheduleError):
    """There is no schedule of that name."""


class ScheduleExists(ScheduleError):
    """There is a schedule of that name already."""


class LeaseLost(EngineError):
    """This owner may write nothing more of the job."""


class JobCancelled(EngineError):
    """The handler should stop."""


class JobFailed(EngineError):
    """Failed, and the text may be shown to users. `retry=False` makes it final."""

    def __init__(self, summary: str, *, retry: bool = True) -> None:
        super().__init__(summary)
        self.retry = retry


class AttemptLost(EngineError):
    """What an adoptable handler began elsewhere can't be found any more."""


class JobTimedOut(EngineError):
    """What an adoptable handler began elsewhere ran out of time."""
