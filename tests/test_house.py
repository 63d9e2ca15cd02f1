"""The rules of the house are checked by machines, and the machines here: each finds a planted fault."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources and the rules, to plant faults in."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    text = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text.replace('venvPath = "."', f'venvPath = "{BIN.parent.parent}"'))
    return tmp_path


def check(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(copy / "src"), "PATH": "/usr/bin:/bin"}
    program = [str(BIN / command[0]), *command[1:]]
    return subprocess.run(program, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def plant(copy: Path, module: str, line: str) -> None:
    path = copy / "src" / "kappa" / module
    path.write_text(path.read_text() + f"\n\n{line}\n")


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("engine/__init__.py", "import kappa.graph", "engine and graph never meet"),
        ("graph/__init__.py", "import kappa.engine", "engine and graph never meet"),
        ("pg/pool.py", "import kappa.engine", "app above engine"),
        ("engine/__init__.py", "import kappa.app.settings", "app above engine"),
        ("pg/queries.py", "import kappa.pg.pool", "inside pg"),
        ("app/settings.py", "import kappa.app.wiring", "inside app"),
    ],
)
def test_an_import_against_the_layers_is_found(copy: Path, module: str, line: str, contract: str) -> None:
    plant(copy, module, line)
    done = check(copy, "lint-imports", "--no-cache")
    assert done.returncode != 0
    broken = [said for said in done.stdout.splitlines() if said.endswith("BROKEN")]
    assert any(contract in said for said in broken), done.stdout


def test_a_module_that_no_contract_knows_is_found(copy: Path) -> None:
    (copy / "src" / "kappa" / "pg" / "stray.py").write_text('"""Belongs nowhere."""\n')
    done = check(copy, "lint-imports", "--no-cache")
    assert done.returncode != 0
    assert "kappa.pg.stray" in done.stdout


def test_a_lint_fault_is_found(copy: Path) -> None:
    plant(copy, "pg/pool.py", "print('here')")
    done = check(copy, "ruff", "check", "--no-cache", "src")
    assert done.returncode != 0
    assert "T201" in done.stdout


def test_a_type_fault_is_found(copy: Path) -> None:
    # The rest is checked by `make check`; without it this takes seconds.
    for part in ("app", "engine", "graph"):
        shutil.rmtree(copy / "src" / "kappa" / part)
    assert check(copy, "basedpyright").returncode == 0
    plant(copy, "pg/pool.py", "wrong: int = 'text'")
    done = check(copy, "basedpyright")
    assert done.returncode != 0
    assert "pool.py" in done.stdout
    assert "reportAssignmentType" in done.stdout


def test_the_lock_names_no_host_and_every_package_has_hashes() -> None:
    for lock in sorted((ROOT / "requirements").glob("*.lock")):
        text = lock.read_text()
        assert "://" not in text, lock
        packages = [line for line in text.splitlines() if "==" in line and not line.startswith(("#", " "))]
        assert packages
        assert all(line.endswith("\\") for line in packages), lock


def test_everything_beside_the_code_ships_with_the_package(copy: Path) -> None:
    (copy / "README.md").write_text("")
    (copy / "LICENSE").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "build_py", "--build-lib", "made"],
        cwd=copy, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    def beside(root: Path) -> set[str]:
        left_out = (".py", ".pyc", ".c", ".so")  # .c is compiled, and goes along with the sources alone
        return {str(path.relative_to(root)) for path in root.rglob("*.*") if path.suffix not in left_out}

    assert len([name for name in beside(copy / "src" / "kappa") if "/corpus/" in name]) == 12
    assert beside(copy / "made" / "kappa") == beside(copy / "src" / "kappa")
