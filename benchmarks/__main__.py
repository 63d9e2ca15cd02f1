"""Runs every benchmark there is: `python -m benchmarks [--quick]`."""

import subprocess
import sys
from pathlib import Path

here = Path(__file__).parent
names = [
    name
    for name in ("queue", "api", "fleet", "graph", "measures", "ingest", "pipeline", "pages", "loop")
    if (here / f"{name}.py").exists()
]
if not names:
    print("there is no benchmark yet")
sys.exit(
    max((subprocess.call([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]) for name in names), default=0)
)
