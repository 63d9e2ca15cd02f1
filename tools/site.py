"""Builds the documentation's site: `python tools/site.py [DIRECTORY]`, into build/site unless told otherwise.

The pages are those of `docs/`, and some that the repository has elsewhere. They are put together in a directory of
their own, with a table of contents made of what is there: a page that no section names is shown under the last one, so
that none is lost, and one that is not there yet is left out. A broken link ends the build.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "docs" / "site.yml"

SECTIONS = {
    "Tutorial": ("tutorial.md", "tutorial-graph.md"),
    "How to": (
        "deploy.md", "growing.md", "fleet.md", "containers.md", "providers.md", "ingest.md", "backup.md", "web.md",
        "mcp.md", "ontologies.md", "measures.md",
    ),
    "Learn": ("engine.md", "graph.md", "ingest-local.md"),
    "Reference": (
        "configuration.md", "cli.md", "cli-reference.md", "api.md", "api-reference.md", "job-states.md", "metrics.md",
        "permissions.md", "security.md", "tool-contract.md", "dependencies.md",
    ),
    "Explanation": (
        "comparison.md", "architecture.md", "threading.md", "leases.md", "graph-budget.md", "reliability.md",
        "benchmarks.md",
    ),
}  # fmt: skip
LAST = "More"

BESIDE = {
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting-security.md",
}
"""Pages that stand elsewhere in the repository, and where the site has them."""

_LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def build(directory: Path) -> int:
    """The exit code of the builder; what it found wrong is on standard error."""
    with tempfile.TemporaryDirectory(prefix="kappa-site-") as made:
        place = Path(made)
        shutil.copytree(ROOT / "docs", place / "docs", ignore=shutil.ignore_patterns("*.md", SETTINGS.name))
        for name, text in pages():
            (place / "docs" / name).write_text(text, encoding="utf-8")
        settings = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
        settings |= {"docs_dir": "docs", "site_dir": "site", "nav": contents([name for name, _ in pages()])}
        (place / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        builder = Path(sys.executable).with_name("zensical")
        done = subprocess.run(
            [str(builder), "build", "--strict"], cwd=place, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.stderr.write(done.stdout + done.stderr)
            return done.returncode
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(place / "site", directory)
    return 0


def pages() -> Iterator[tuple[str, str]]:
    """Every page by its name in the site, with links that lead where the site has things."""
    sources = {path.relative_to(ROOT / "docs").as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    sources |= {page: ROOT / source for source, page in BESIDE.items()}
    for name, path in sources.items():
        yield name, _LINK.sub(lambda found, at=path: _link(found, at), path.read_text(encoding="utf-8"))


def contents(names: list[str]) -> list[dict[str, Any]]:
    """The sections, of these pages."""
    made = {title: [name for name in named if name in names] for title, named in SECTIONS.items()}
    made["Decisions"] = sorted(
        (name for name in names if name.startswith("adr/")), key=lambda name: (name[4] != "R", name)
    )
    shown = {"index.md", *(name for named in made.values() for name in named)}
    made[LAST] = sorted(name for name in names if name not in shown)
    return [{"Kappa": "index.md"}, *({title: named} for title, named in made.items() if named)]


def _link(found: re.Match[str], page: Path) -> str:
    """A link of the repository as one of the site. What the site hasn't, as sources, is named and not linked."""
    target = (page.parent / found["target"]).resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return found[0]  # the builder will say so
    there = target.relative_to(ROOT).as_posix()
    if there == "docs/adr":
        there = "docs/adr/README.md"
    name = BESIDE.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else None)
    if name is None:
        return found["text"] if found["text"].strip("`") == there else f"{found['text']} (`{there}`)"
    up = "../" if page.parent.name == "adr" else ""
    return f"[{found['text']}]({up}{name}{found['anchor'] or ''})"


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"))
