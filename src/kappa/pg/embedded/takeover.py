"""Hands a data directory over from one account to another, while no server runs on it.

The former account may be anybody's. So the directory is root's until all of it has been handed over, every directory
is closed before its entries are looked at, and only what belonged to the former account changes hands. What leads
elsewhere is refused: a symbolic link, a second name of the same file. Killed in the middle, it is done again from the
start: a file that only root can write says so.
"""

import os
import stat
from pathlib import Path

from kappa.pg.embedded.binaries import Account
from kappa.pg.errors import ServerFailed


def hand_over(data: Path, former: int, account: Account) -> None:
    """Give `data` and all in it, which belong to the uid `former`, to `account` alone."""
    directory = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(directory, 0, 0)
        os.fchmod(directory, 0o700)
        _hand_over_entries(directory, data, former, account)
        os.fchown(directory, account.uid, account.gid)
    finally:
        os.close(directory)


def _hand_over_entries(directory: int, path: Path, former: int, account: Account) -> None:
    for name in os.listdir(directory):
        place = path / name
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if found.st_uid not in (former, account.uid):
            raise ServerFailed(
                f"{place} belongs to uid {found.st_uid}, not to the database's account: move it out of the data "
                f"directory, or `chown` it to {account.name}, and start again"
            )
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid == account.uid:
                continue
            raise ServerFailed(
                f"{place} is a symbolic link, and what it leads to is not taken over: `chown -R` that to "
                f"{account.name}, then `chown -h` the link, and start again"
            )
        if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            os.chown(name, account.uid, account.gid, dir_fd=directory, follow_symlinks=False)
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise ServerFailed(
                f"{place} has another name elsewhere, so it is not handed over: remove the other name, or replace "
                f"it by a copy, and start again"
            )
        entry = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fchown(entry, account.uid, account.gid)
            os.fchmod(entry, found.st_mode & 0o700)
            if stat.S_ISDIR(found.st_mode):
                _hand_over_entries(entry, place, former, account)
        finally:
            os.close(entry)
