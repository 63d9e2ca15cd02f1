"""The files of one embedded server, made once and owned by the account that runs it.

As root that account is an unprivileged one (account.py). It needs no right on any directory above: what it must reach
is handed over as an open descriptor, and no directory's mode is ever changed.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Self

from kappa.pg.embedded.account import account_of, dedicated_account, is_shared
from kappa.pg.embedded.binaries import Account, Binaries, can_reach
from kappa.pg.embedded.roles import SUPERUSER
from kappa.pg.embedded.takeover import hand_over
from kappa.pg.errors import ServerFailed
from kappa.pg.locks import FileLock

_VARIABLES = ("PATH", "TMPDIR", "TZ")
_VARIABLE_PREFIXES = ("LD_", "DYLD_", "MALLOC_")


class Cluster:
    """`data`, `run` and the passwords below one directory."""

    def __init__(self, root: Path, account_name: str | None, say: Callable[[str], None]) -> None:
        self.root = root
        self.data = root / "data"
        self.run = root / "run"
        self.password = Password(root / "password")
        self.superuser_password = Password(root / "superuser-password")
        self._takeover = root / "takeover"
        self._account_name = account_name
        self._say = say

    def initialise(self, binaries: Binaries, account: Account | None, life: FileLock) -> None:
        """Make the data directory: beside its place, and moved there when it is whole.

        The program that makes it inherits the life lock: should this process be killed, the next one waits for it.
        """
        self._say(f"making a PostgreSQL {binaries.version} database in {self.root}")
        for leftover in self.root.glob("data.new-*"):
            shutil.rmtree(leftover)
        fresh = self.root / f"data.new-{secrets.token_hex(4)}"
        self.own_directory(fresh, account)
        secret = fresh.with_name("password.initdb")
        secret.unlink(missing_ok=True)
        secret.touch(mode=0o600)
        secret.write_text(self.superuser_password.make())
        self.password.make()
        if account is not None:
            os.chown(secret, account.uid, account.gid)
        # The builtin locale needs nothing of the system, and gives the same order on all of them.
        locale = ["--locale-provider=builtin"] if binaries.major >= 17 else []
        try:
            with Passage(account) as passage:
                environment = clean_environment()
                if account is not None and account_of(account.uid) is None:
                    environment["LD_PRELOAD"] = passage.library(_passwd_library())
                command = [
                    str(binaries.program("initdb")),
                    *("-D", passage.path(fresh)),
                    *("-U", SUPERUSER, "-A", "scram-sha-256", f"--pwfile={passage.path(secret)}"),
                    *("--encoding=UTF8", *locale, "--locale=C.UTF-8", "--no-instructions"),
                ]
                made = passage.popen(command, env=environment, stdout=subprocess.PIPE, keep=(life.fd,))
                output, _ = made.communicate()
            if made.returncode != 0:
                complaint = last_complaint(output.decode(errors="replace"))
                raise ServerFailed(f"no database could be made in {self.root}: {complaint}")
            fresh.rename(self.data)
        finally:
            secret.unlink(missing_ok=True)
            shutil.rmtree(fresh, ignore_errors=True)

    def check_version(self, binaries: Binaries) -> None:
        try:
            made_by = (self.data / "PG_VERSION").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise ServerFailed(f"{self.data} is not a PostgreSQL data directory") from None
        if made_by != str(binaries.major):
            raise ServerFailed(
                f"the data in {self.data} was made by PostgreSQL {made_by}, but {binaries.directory} is "
                f"{binaries.version}: set KAPPA_POSTGRES_BIN to a PostgreSQL {made_by}, or use another KAPPA_HOME"
            )

    def account(self) -> Account | None:
        """Whom the server runs as: the caller, unless that is root, which PostgreSQL refuses.

        The data's owner, once there is data. What an earlier version gave to `nobody` is taken over first. To be asked
        while no server runs.
        """
        if os.geteuid() != 0:
            return None
        if not self.data.exists():
            return dedicated_account(self._account_name, self._say)
        owner = self.data.stat()
        if self._takeover.exists() or is_shared(owner.st_uid):
            return self._take_over(owner.st_uid)
        if owner.st_uid == 0:
            raise ServerFailed(f"PostgreSQL refuses to run as root, and {self.data} belongs to root")
        # Without an entry in passwd, as in a new container on an old volume, the server runs as well.
        return account_of(owner.st_uid) or Account(f"uid {owner.st_uid}", owner.st_uid, owner.st_gid)

    def _take_over(self, owner: int) -> Account:
        account = dedicated_account(self._account_name, self._say)
        if not self._takeover.exists():
            Password(self._takeover).write(str(owner))
        former = int(self._takeover.read_text(encoding="utf-8"))
        self._say(f"handing the database in {self.data} over to the account {account.name!r}")
        hand_over(self.data, former, account)
        shutil.rmtree(self.run, ignore_errors=True)
        self._takeover.unlink()
        return account

    def own_directory(self, path: Path, account: Account | None) -> None:
        path.mkdir(exist_ok=True, mode=0o700)
        if account is not None:
            os.chown(path, account.uid, account.gid)


class Password:
    """A file with a secret, whole or not there at all, that only the one who runs Kappa can read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> str:
        """The secret, made if there is none yet."""
        if not self.path.exists():
            self.write(secrets.token_urlsafe(24))
        return self.read()

    def read(self) -> str:
        return self.path.read_text(encoding="utf-8").strip()

    def write(self, text: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self.path)


class Passage:
    """Runs a program under an account, and leads it past directories that the account may not enter.

    A descriptor that is open already asks no right of the directories above. As `/proc/self/fd/…` it works
    wherever a path does.
    """

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self._open: list[int] = []

    def path(self, path: Path) -> str:
        if self._account is None or can_reach(path.parent, self._account):
            return str(path)
        if not sys.platform.startswith("linux"):
            raise ServerFailed(f"as root, the account {self._account.name!r} must be able to enter {path.parent}")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._open.append(descriptor)
        return f"/proc/self/fd/{descriptor}"

    def library(self, path: Path) -> str:
        """A library as the program can load it, which may not be able to enter the directories above."""
        descriptor = os.memfd_create(path.name)
        self._open.append(descriptor)
        with path.open("rb") as source, open(descriptor, "wb", closefd=False) as copy:
            shutil.copyfileobj(source, copy)
        return f"/proc/self/fd/{descriptor}"

    def popen(
        self,
        command: list[str],
        *,
        env: Mapping[str, str],
        stdout: int | IO[bytes],
        keep: tuple[int, ...] = (),
    ) -> subprocess.Popen[bytes]:
        account = self._account
        return subprocess.Popen(
            command,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # ctrl-C in the starter's terminal is not meant for the server
            umask=0o077,
            pass_fds=(*self._open, *keep),
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for descriptor in self._open:
            os.close(descriptor)


def clean_environment() -> dict[str, str]:
    """What programs need of the environment, without what would change PostgreSQL's mind, and without secrets."""
    return {
        name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES)
    }


def _passwd_library() -> Path:
    """Built with the package where there is a C compiler."""
    if not sys.platform.startswith("linux"):
        raise ServerFailed(
            "as root, an account is needed that the server can run under: name it in KAPPA_POSTGRES_USER"
        )
    for path in Path(__file__).parent.glob("_passwd*.so"):
        return path
    raise ServerFailed(
        "the database can't be made under a uid that no account has, because Kappa was installed without a C "
        "compiler: name an account in KAPPA_POSTGRES_USER, or run Kappa as another user than root"
    )


def last_complaint(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for word in ("FATAL:", "PANIC:", "error:", "ERROR:"):
        for line in reversed(lines):
            if word in line:
                return line.split(word, 1)[1].strip()
    return lines[-1] if lines else "it said nothing"
