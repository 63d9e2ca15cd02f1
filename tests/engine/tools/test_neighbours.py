"""Two Kappas on one host have jobs of the same numbers, and leave each other's runs alone."""

from pathlib import Path

from kappa.engine.tools import Identity, ProcessRunner, Spec
from kappa.engine.tools.run import RunDirectory, uid_of

SAME = Identity(1, 1)


def begun(root: Path) -> ProcessRunner:
    directory = RunDirectory(root, SAME)
    for path in (directory.private, directory.path, directory.input, directory.output):
        path.mkdir(parents=True)
    directory.request.write_text("{}")
    runner = ProcessRunner(root, sandbox=False)
    runner.start(Spec(SAME, ("sh", "-c", "sleep 1000"), timeout=60))
    return runner


def test_ending_a_run_and_its_strays_ends_nobody_elses(tmp_path: Path) -> None:
    ours, theirs = begun(tmp_path / "ours"), begun(tmp_path / "theirs")
    try:
        ours.stop(SAME)
        ours.remove(SAME)
        assert not ours.find(SAME).running
        assert theirs.find(SAME).running
    finally:
        theirs.stop(SAME)


def test_a_run_has_a_user_of_its_own_also_beside_another_kappa() -> None:
    # Of two homes in five hundred some runs share a user; of these none.
    users = {uid_of(Path(home), job) for home in ("/home/ours", "/home/theirs") for job in range(100)}
    assert len(users) == 200
    assert all(200_000 <= user < 300_000 for user in users)
