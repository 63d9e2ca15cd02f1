"""`python -m tests.chaos [--seed N] [--minutes M | --jobs N --faults N]`: one run, and what came of it."""

import argparse
import functools
import secrets
import signal
import sys

from tests.chaos.faults import WEIGHTS
from tests.chaos.run import run

SHOWN = 20

say = functools.partial(print, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat the faults of an earlier run")
    parser.add_argument("--minutes", type=float, help="make faults for so long")
    parser.add_argument("--jobs", type=int, default=10_000, help="without --minutes: so many acknowledged jobs")
    parser.add_argument("--faults", type=int, default=200, help="without --minutes: so many faults")
    parser.add_argument("--sorts", metavar="SORT,…", help="make only these sorts of faults")
    parser.add_argument("--without", metavar="SORT,…", help="make no faults of these sorts")
    asked = parser.parse_args()
    sorts = _sorts(parser, asked.sorts or ",".join(WEIGHTS)) - _sorts(parser, asked.without or "")
    if not sorts:
        parser.error("no sort of fault is left")
    seed = secrets.randbelow(1_000_000) if asked.seed is None else asked.seed
    say(f"seed {seed}")
    # So that the cluster is taken down and its disk unmounted then, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    report = run(seed, minutes=asked.minutes, jobs=asked.jobs, faults=asked.faults, say=say, sorts=sorts)
    for violation in report.violations[:SHOWN]:
        say(f"VIOLATION (seed {seed}) {violation}")
    if len(report.violations) > SHOWN:
        say(f"… and {len(report.violations) - SHOWN} more")
    say(str(report))
    return 1 if report.violations else 0


def _sorts(parser: argparse.ArgumentParser, text: str) -> set[str]:
    sorts = {sort.strip() for sort in text.split(",")} - {""}
    if unknown := sorts - WEIGHTS.keys():
        parser.error(f"unknown sorts of faults: {', '.join(sorted(unknown))}. Choose from: {', '.join(WEIGHTS)}")
    return sorts


if __name__ == "__main__":
    sys.exit(main())
