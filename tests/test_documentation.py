"""The documentation speaks of what is there: links, commands, options, settings, metrics, permissions; and its site."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kappa.app.cli.commands import whole
from kappa.app.permissions import Permission
from kappa.app.settings import Settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"])
TREE = whole()


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(text: str) -> str:
    """Without blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as forges make them."""
    found: set[str] = set()
    for title in re.findall(r"^#{1,6} (.+)$", prose(page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        name = base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        again = 0
        while name in found:
            again += 1
            name = f"{base}-{again}"
        found.add(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and (there.suffix != ".md" or anchor not in anchors(there))):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_ends(page: Path) -> None:
    links = re.findall(r"\]\([^)\n]*\)?", re.sub(r"`[^`\n]*`", "", prose(page.read_text())))
    assert [link for link in links if not link.endswith(")")] == []


def lines_of_code(text: str) -> Iterator[str]:
    """Commands as they are shown: in blocks, indented, and inside of sentences. Lines that go on are one."""
    text = re.sub(r"\\\n\s*", " ", text)
    blocks = re.findall(r"^```sh[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    yield from (line for block in blocks for line in block.splitlines())
    without = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"^ {4,}(.+)$", without, re.MULTILINE)
    yield from re.findall(r"`([^`\n]+)`", without)


def commands_in(page: Path) -> Iterator[list[str]]:
    for line in lines_of_code(page.read_text()):
        for found in re.findall(
            r"(?:^|\$\(|until |; |\|\| |(?<=\S=\S{3}) )((?:[A-Z_]+=\S+ )*)kg (?=[a-z])([^#|;)]*)", line
        ):
            words = re.sub(r"[(\[<>…].*$", "", found[1].split(" || ")[0]).strip()
            try:
                yield ["kg", *shlex.split(words)]
            except ValueError:
                yield ["kg", *words.split()]


def misnamed(words: list[str]) -> str | None:
    """What a command line says that `kg` doesn't know."""
    command: Any = TREE
    rest = words[1:]
    while rest and (child := getattr(command, "commands", {}).get(rest[0])) is not None:
        command, rest = child, rest[1:]
    if getattr(command, "commands", {}) and rest and not rest[0].startswith("-") and re.fullmatch("[a-z-]+", rest[0]):
        return f"no command {rest[0]}"
    known = {word for one in command.params for word in (*one.opts, *one.secondary_opts)} | {"--help"}
    for word in rest:
        if word == "--":
            break
        if re.fullmatch(r"--[a-z][a-z-]*", word) and word not in known:
            return f"no option {word}"
    return None


def test_every_kg_command_that_is_shown_exists_with_its_options() -> None:
    shown = [(named(page), words) for page in PAGES if page.name != "CHANGELOG.md" for words in commands_in(page)]
    assert len(shown) > 100
    wrong = [(page, " ".join(words), fault) for page, words in shown if (fault := misnamed(words))]
    assert wrong == []


def test_a_command_that_is_not_there_is_found() -> None:
    assert misnamed(["kg", "job", "lst"]) == "no command lst"
    assert misnamed(["kg", "job", "list", "--sate", "failed"]) == "no option --sate"
    assert misnamed(["kg", "tool", "add", "x", "--", "ls", "--all"]) is None


def test_every_make_target_that_is_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        (named(page), found[1])
        for page in PAGES
        for line in lines_of_code(page.read_text())
        if (found := re.match(r"make ([a-z-]+)", line))
    }
    assert len(shown) > 5
    assert {one for one in shown if one[1] not in targets} == set()


def everything() -> Iterator[tuple[str, str]]:
    for path in [*PAGES, *(path for path in (ROOT / "deploy").rglob("*") if path.is_file())]:
        yield named(path), path.read_text()


def test_no_setting_is_spoken_of_that_there_is_none_of() -> None:
    known = {f"KAPPA_{name.upper()}" for name in Settings.model_fields}
    # What a tool finds in its environment; what only tests look at; a server's address in a script.
    known |= {"KAPPA_DIR", "KAPPA_TEST_REQUIRE_ALL"}
    spoken = {(where, word) for where, text in everything() for word in re.findall(r"\bKAPPA_[A-Z_]+\b", text)}
    assert len({word for _, word in spoken}) > 30
    assert {one for one in spoken if one[1] not in known} == set()


def test_no_metric_is_spoken_of_that_there_is_none_of() -> None:
    known = set(re.findall(r"^\| `(kappa_\w+)`", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    families = known | {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    beside = {"kappa_graph", "kappa_session"}  # a schema and a cookie
    spoken = {
        (where, word) for where, text in everything() for word in re.findall(r"(?<![\w.])kappa_[a-z][a-z_]+\b", text)
    }
    assert {one for one in spoken if one[1] not in families | beside} == set()


def test_no_permission_is_spoken_of_that_there_is_none_of() -> None:
    resources = {permission.split(":")[0] for permission in Permission}
    pattern = rf"\b((?:{'|'.join(sorted(resources))}):[a-z_]+)\b"
    spoken = {(where, word) for where, text in everything() for word in re.findall(pattern, text)}
    assert {one for one in spoken if one[1] not in set(Permission)} == set()


def test_what_the_code_says_is_what_the_reference_says(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tools/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def copied(tmp_path: Path) -> Path:
    """The documentation, and what makes a site of it, to plant faults in."""
    for name in ("docs", "tools", "src", "benchmarks", "deploy", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("docs", "tools"):
        (tmp_path / name).unlink()
        shutil.copytree(ROOT / name, tmp_path / name)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, tmp_path)
    return tmp_path


def test_a_reference_that_is_behind_is_found(tmp_path: Path) -> None:
    tree = copied(tmp_path)
    page = tree / "docs" / "configuration.md"
    page.write_text(page.read_text().replace("| `KAPPA_PORT` | 8420 |", "| `KAPPA_PORT` | 80 |"))
    program = [sys.executable, "tools/reference.py"]
    done = subprocess.run([*program, "--check"], cwd=tree, capture_output=True, text=True, check=False)
    assert (done.returncode, "configuration.md" in done.stderr) == (1, True)
    subprocess.run(program, cwd=tree, check=True)
    assert page.read_text() == (DOCS / "configuration.md").read_text()


class Fetched(HTMLParser):
    """What a browser would fetch for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed") and given.get("src"):
            self.addresses.append(given["src"] or "")
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(given.get("href") or "")


def test_the_site_is_whole_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tools/site.py", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = {page.relative_to(tmp_path / "site").as_posix() for page in (tmp_path / "site").rglob("*.html")}
    wanted = {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in DOCS.rglob("*.md")}
    assert wanted - built == {"adr/README.html"}, "which is its directory's index"
    contents = (tmp_path / "site" / "index.html").read_text()
    assert [page for page in wanted & built if f'href="./{page}"' not in contents] == ["index.html"]
    unread = [page for page in built if "```" in (tmp_path / "site" / page).read_text()]
    assert unread == [], "a block that was not understood"
    fetched = Fetched()
    for page in built:
        fetched.feed((tmp_path / "site" / page).read_text())
    assert len(fetched.addresses) > len(built)
    assert [address for address in fetched.addresses if re.match(r"([a-z]+:)?//", address)] == []
    sheets = [sheet.read_text() for sheet in (tmp_path / "site").rglob("*.css")]
    assert sheets
    assert [
        found for sheet in sheets for found in re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\"']*", sheet)
    ] == []


@pytest.mark.parametrize("planted", ["[x](nowhere.md)", "[x](cli.md#nothing-of-that-name)"])
def test_the_site_is_not_built_with_a_link_that_leads_nowhere(tmp_path: Path, planted: str) -> None:
    tree = copied(tmp_path)
    with (tree / "docs" / "leases.md").open("a") as page:
        page.write(f"\n{planted}\n")
    done = subprocess.run(
        [sys.executable, "tools/site.py", str(tmp_path / "site")], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "does not exist" in done.stderr
    assert not (tmp_path / "site").exists()
