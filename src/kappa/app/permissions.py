"""Who may do what: permissions are `resource:action`, roles are sets of them."""

from enum import StrEnum


class Permission(StrEnum):
    ACCOUNT_USE = "account:use"
    JOBS_VIEW = "jobs:view"
    JOBS_ENQUEUE = "jobs:enqueue"
    JOBS_CANCEL = "jobs:cancel"
    JOBS_RETRY = "jobs:retry"
    JOBS_PRIORITISE = "jobs:prioritise"
    JOBS_APPROVE = "jobs:approve"
    JOBS_MANAGE = "jobs:manage"
    SCHEDULES_VIEW = "schedules:view"
    SCHEDULES_MANAGE = "schedules:manage"
    WORKERS_VIEW = "workers:view"
    WORKERS_MANAGE = "workers:manage"
    USERS_VIEW = "users:view"
    USERS_MANAGE = "users:manage"
    AUDIT_VIEW = "audit:view"
    TOOLS_VIEW = "tools:view"
    TOOLS_RUN = "tools:run"
    TOOLS_MANAGE = "tools:manage"
    FLEET_WORK = "fleet:work"
    FLEET_VIEW = "fleet:view"
    GRAPH_READ = "graph:read"
    GRAPH_WRITE = "graph:write"
    GRAPH_INGEST = "graph:ingest"
    GRAPH_CURATE = "graph:curate"
    GRAPH_MANAGE = "graph:manage"


MEANING: dict[Permission, str] = {
    Permission.ACCOUNT_USE: "see oneself, keep one's own tokens, change one's own password",
    Permission.JOBS_VIEW: "list and show jobs, watch their progress",
    Permission.JOBS_ENQUEUE: "enqueue jobs",
    Permission.JOBS_CANCEL: "cancel one's own jobs",
    Permission.JOBS_RETRY: "retry one's own jobs",
    Permission.JOBS_PRIORITISE: "change the priority of one's own jobs, and give one above 0",
    Permission.JOBS_APPROVE: "approve and reject jobs",
    Permission.JOBS_MANAGE: "cancel, retry and re-prioritise the jobs of others as well",
    Permission.SCHEDULES_VIEW: "see schedules, their next times and what went wrong",
    Permission.SCHEDULES_MANAGE: "make, edit, pause, resume, run and delete schedules",
    Permission.WORKERS_VIEW: "see workers, lanes, metrics, and the tracebacks of jobs",
    Permission.WORKERS_MANAGE: "edit, drain and resume lanes; cancel and re-prioritise any job",
    Permission.USERS_VIEW: "see users, roles and their tokens",
    Permission.USERS_MANAGE: "make, change and remove users, roles and tokens",
    Permission.AUDIT_VIEW: "read the audit log",
    Permission.TOOLS_VIEW: "see tools and their runs, logs and artifacts",
    Permission.TOOLS_RUN: "run tools, and cancel one's own runs",
    Permission.TOOLS_MANAGE: "register tools, which says what runs on the server",
    Permission.FLEET_WORK: "do the jobs of fleet lanes as a remote worker",
    Permission.FLEET_VIEW: "see the fleet's workers",
    Permission.GRAPH_READ: "ask the graph, see concepts and their evidence, the vocabulary and artifacts",
    Permission.GRAPH_WRITE: "add concepts and relations",
    Permission.GRAPH_INGEST: "upload documents, and submit them for ingestion",
    Permission.GRAPH_CURATE: "rename and delete ontologies; merge relation types; decide about proposals, have them "
    "carried out; undo both",
    Permission.GRAPH_MANAGE: "back up and restore; change what questions may use",
}

_READ_ONLY = frozenset(
    {
        Permission.ACCOUNT_USE,
        Permission.JOBS_VIEW,
        Permission.SCHEDULES_VIEW,
        Permission.TOOLS_VIEW,
        Permission.GRAPH_READ,
    }
)
_CONTRIBUTOR = _READ_ONLY | {
    Permission.JOBS_ENQUEUE,
    Permission.JOBS_CANCEL,
    Permission.JOBS_RETRY,
    Permission.TOOLS_RUN,
    Permission.GRAPH_WRITE,
    Permission.GRAPH_INGEST,
}
_CURATOR = _CONTRIBUTOR | {
    Permission.JOBS_PRIORITISE,
    Permission.JOBS_APPROVE,
    Permission.JOBS_MANAGE,
    Permission.GRAPH_CURATE,
}
_ADMIN = _CURATOR | {Permission.USERS_VIEW, Permission.USERS_MANAGE, Permission.AUDIT_VIEW}

ROLES: dict[str, frozenset[Permission]] = {
    "read_only": _READ_ONLY,
    "contributor": _CONTRIBUTOR,
    "curator": _CURATOR,
    "admin": _ADMIN,
    "platform_admin": frozenset(Permission),
}
"""The roles that are always there. Others are made by those who may manage users."""
