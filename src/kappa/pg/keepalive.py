"""How soon the two ends of a connection notice that the other's host has vanished.

TCP by itself waits for hours, and as long the server keeps what the lost session held: a row of a job that was about to
be settled, the leader's lock. What the URL or PGOPTIONS says is left as it is.
"""

from typing import Any

from psycopg import pq
from psycopg.conninfo import conninfo_to_dict


def options(url: str, *, idle: int = 15, interval: int = 5, count: int = 3, direct: bool) -> dict[str, Any]:
    """Arguments for `connect`. A pooler takes none for its servers: `direct` says whether there is none."""
    given = conninfo_to_dict(url)
    wait = 1000 * (idle + interval * count)
    ours: dict[str, Any] = {
        "keepalives_idle": idle,
        "keepalives_interval": interval,
        "keepalives_count": count,
        "tcp_user_timeout": wait,
    }
    if direct:
        theirs = {
            "tcp_keepalives_idle": idle,
            "tcp_keepalives_interval": interval,
            "tcp_keepalives_count": count,
            "tcp_user_timeout": wait,
        }
        said = str(given.get("options") or _from_environment())
        added = [f"-c {name}={value}" for name, value in theirs.items() if name not in said]
        ours["options"] = " ".join([said, *added]).strip()
    return {name: value for name, value in ours.items() if name == "options" or name not in given}


def _from_environment() -> str:
    """PGOPTIONS, which libpq forgets as soon as a connection is given options of its own."""
    found = [option.val for option in pq.Conninfo.get_defaults() if option.keyword == b"options"]
    return (found[0] or b"").decode()
