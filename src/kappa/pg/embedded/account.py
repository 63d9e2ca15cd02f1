"""The account that the embedded server runs under where root starts it: one that no other service has.

That is KAPPA_POSTGRES_USER, else the system account `kappa-postgres`, which is made where it is missing. Where none can
be made (no `useradd`, a read-only /etc) it is a uid that no account has. It is never `nobody`: everything else that
runs as `nobody` could stop the server, read its memory and change its files.
"""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from kappa.pg.embedded.binaries import Account
from kappa.pg.errors import ServerFailed
from kappa.pg.locks import FileLock

ACCOUNT = "kappa-postgres"
OVERFLOW_UID = 65534
"""Whom the kernel shows for owners that it can't name; on most systems `nobody`."""
UNASSIGNED_UIDS = range(60578, 61184)
"""Between the ranges that distributions and systemd give out."""
LOCK = Path("/run/kappa-postgres.lock")
"""Held by who makes the account."""
TRIES = 5
_CANT_UPDATE = (1, 10)
"""What useradd says where another one is at it."""


def dedicated_account(name: str | None, say: Callable[[str], None]) -> Account:
    """The account for a new database."""
    if name is not None:
        found = _named(name)
        if found is None:
            raise ServerFailed(
                f"the account {name!r} is not in passwd: make it, or unset KAPPA_POSTGRES_USER to have one made"
            )
        if is_shared(found.uid):
            raise ServerFailed(
                f"KAPPA_POSTGRES_USER is {name!r}, which any service may run as: name an account of its own for the "
                f"database, or unset it to have one made"
            )
        if found.uid == 0:
            raise ServerFailed("KAPPA_POSTGRES_USER is an account of root's, as which PostgreSQL refuses to run")
        return found
    if (found := _named(ACCOUNT)) is not None:
        return found
    try:
        # Of several at once, useradd would make several accounts of this name.
        with FileLock.wait(LOCK, lambda: None):
            if (found := _named(ACCOUNT)) is not None:
                return found
            complaint = _make()
    except OSError as error:
        complaint = str(error)
    if (found := _named(ACCOUNT)) is not None:
        say(f"made the system account {ACCOUNT!r}, which the database server runs under")
        return found
    uid = next(uid for uid in UNASSIGNED_UIDS if account_of(uid) is None)
    say(
        f"no account {ACCOUNT!r} can be made ({complaint}): the database server runs under uid {uid}, which is nobody's"
    )
    return Account(f"uid {uid}", uid, uid)


def account_of(uid: int) -> Account | None:
    """The account in passwd that has a uid."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return None
    return Account(found.pw_name, found.pw_uid, found.pw_gid)


def is_shared(uid: int) -> bool:
    """Whether services that have nothing to do with each other run under this uid."""
    nobody = _named("nobody")
    return uid == OVERFLOW_UID or (nobody is not None and nobody.uid == uid)


def _named(name: str) -> Account | None:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(found.pw_name, found.pw_uid, found.pw_gid)


def _make() -> str:
    """Make the account; why it could not be made, should it be missing afterwards."""
    everywhere = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    program = shutil.which("useradd", path=everywhere)
    if program is None:
        return "there is no useradd"
    if not os.access("/etc", os.W_OK):
        return "/etc is read-only"
    shell = next((path for path in ("/usr/sbin/nologin", "/sbin/nologin") if Path(path).exists()), "/bin/false")
    command = [program, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    complaint = ""
    for _ in range(TRIES):
        done = subprocess.run([*command, "--shell", shell, ACCOUNT], capture_output=True, text=True, check=False)
        complaint = " ".join(done.stderr.split()) or f"useradd ended with {done.returncode}"
        if done.returncode not in _CANT_UPDATE or _named(ACCOUNT) is not None:
            break
        time.sleep(0.5)  # another process may be changing the accounts
    return complaint
