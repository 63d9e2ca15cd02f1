"""What Kappa is made of, and what can be said of it: `python tools/supply_chain.py locks|select|audit`.

- `locks` checks that every lock pins every package to one version and its files to their SHA-256, and names no index,
  no address and no local file. It needs no network.
- `select REPORT` gives the part of a lock that a resolution by pip (`pip install --dry-run --report`) needs.
- `audit` asks a vulnerability service about a lock, by pip-audit. It fails where it can't ask: a service that does not
  know of a release with well-known holes is not one, and a package that it doesn't know was not checked.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))

PINNED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[\w,-]+\])?==(?P<version>[\w.!+]+)(?P<marker> ; [^\\]+?)?"
    r"(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)"
)

KNOWN_BAD = """\
urllib3==1.24.1 --hash=sha256:61bf29cada3fc2fbefad4fdf059ea4bd1b4a86d2b6d15e1c7c0b582b9752fe39
"""
"""A release that every vulnerability service knows something of, since 2019. Nothing of it is fetched."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    locks = commands.add_parser("locks")
    locks.add_argument("lock", nargs="*", type=Path, default=LOCKS)
    select = commands.add_parser("select")
    select.add_argument("lock", type=Path)
    select.add_argument("report", type=Path, nargs="?")
    select.add_argument("--name", action="append", default=[])
    audit = commands.add_parser("audit")
    audit.add_argument("lock", type=Path)
    audit.add_argument("--pip-audit", default="pip-audit")
    asked = parser.parse_args()
    match asked.command:
        case "locks":
            faults = [f"{lock.name}: {fault}" for lock in asked.lock for fault in faults_of(lock.read_text())]
            good = f"{', '.join(lock.name for lock in asked.lock)}: pinned, with hashes"
            sys.stdout.writelines(f"{line}\n" for line in faults or [good])
            return bool(faults)
        case "select":
            sys.stdout.write(selected(asked.lock.read_text(), wanted(asked.report, asked.name)))
            return 0
        case _:
            return audited(asked.lock, asked.pip_audit)


def requirements(lock: str) -> Iterator[str]:
    """The requirements of a lock, each on one line."""
    for line in re.sub(r"\s*\\\n\s*", " ", lock).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def faults_of(lock: str) -> list[str]:
    """Why a lock does not say exactly what is installed."""
    faults: list[str] = []
    for line in requirements(lock):
        if PINNED.fullmatch(line):
            continue
        said = line.split(" --hash", 1)[0]
        if line.startswith("-"):
            faults.append(f"{said!r} is an option: a lock names no index and no other file")
        elif "://" in said or " @ " in said or said.startswith((".", "/")):
            faults.append(f"{said!r} is an address: a lock names packages by their versions alone")
        elif "==" not in said:
            faults.append(f"{said!r} has no version")
        elif "--hash" not in line:
            faults.append(f"{said!r} has no hash")
        else:
            faults.append(f"{said!r} is not `name==version` with hashes by SHA-256")
    return faults or ([] if any(requirements(lock)) else ["it is empty"])


def wanted(report: Path | None, names: list[str]) -> set[str]:
    """The packages of a resolution by pip, without Kappa itself."""
    found = {_normal(name) for name in names}
    if report is not None:
        for one in json.loads(report.read_text())["install"]:
            found.add(_normal(one["metadata"]["name"]))
    return found - {"kappa"}


def selected(lock: str, names: set[str]) -> str:
    """The lock's own lines for these packages; an error names those that it doesn't have."""
    lines = [(_normal(found["name"]), line) for line in requirements(lock) if (found := PINNED.match(line))]
    if missing := sorted(names - {name for name, _ in lines}):
        raise SystemExit(f"not in the lock: {', '.join(missing)}")
    return "".join(f"{line}\n" for name, line in lines if name in names)


def audited(lock: Path, program: str) -> int:
    with tempfile.TemporaryDirectory() as place:
        known_bad = Path(place) / "known-bad.txt"
        known_bad.write_text(KNOWN_BAD)
        asked = _pip_audit(program, known_bad, "--format", "json")
        try:
            there = any(one.get("vulns") for one in json.loads(asked.stdout)["dependencies"])
        except (ValueError, KeyError):
            there = False
    if not there:
        sys.stderr.write(f"NOT AUDITED: the vulnerability service could not be asked.\n{asked.stderr.strip()}\n")
        return 1
    done = _pip_audit(program, lock)
    sys.stdout.write(done.stdout)
    if done.returncode:
        fault = f"{lock.name} has vulnerabilities, or packages that could not be audited."
        sys.stderr.write(f"{fault}\n{done.stderr.strip()}\n")
    return done.returncode


def _pip_audit(program: str, lock: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [
        program,
        "--strict",
        "--disable-pip",
        "--require-hashes",
        "--progress-spinner",
        "off",
        *more,
        "-r",
        str(lock),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
