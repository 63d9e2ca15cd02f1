"""What running servers leave in the Kappa home is theirs for as long as they live, and no longer."""

import json
import os
import stat
from pathlib import Path

from kappa.app import home as app_home
from tests.ground import Script

SERVER = """
    import pathlib, sys
    from kappa.app import home as app_home
    home = pathlib.Path(sys.argv[1])
    with app_home.announced(home, "http://127.0.0.1:8420"), app_home.own_directory(home, "spool") as own:
        (own / "upload").write_text("half of it")
        print(own.name, flush=True)
        input()
"""


def test_a_server_is_found_while_it_lives(home: Path) -> None:
    with Script(SERVER, home) as server:
        server.line()
        assert app_home.running(home) == [app_home.Running(server.process.pid, "http://127.0.0.1:8420")]
        server.kill()
        assert app_home.running(home) == []


def test_a_killed_server_is_not_found_although_another_process_has_its_pid(home: Path) -> None:
    """As in containers, where every server has the same."""
    with Script(SERVER, home) as server:
        server.line()
        server.kill()
    (said,) = (home / "servers").glob("*.json")
    said.write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:8420"}))
    assert app_home.running(home) == []
    assert not said.exists()


def test_what_a_killed_server_left_is_gone_when_the_next_one_begins(home: Path) -> None:
    with Script(SERVER, home) as server:
        left = home / "spool" / server.line()
        server.kill()
        assert (left / "upload").exists()
        left.rename(again := left.with_name(str(os.getpid())))
        with app_home.own_directory(home, "spool") as own:
            assert not again.exists()
            assert list(own.iterdir()) == []
    assert not own.exists()


def test_what_a_living_server_of_an_earlier_version_has_stays(home: Path) -> None:
    """It holds no lock: its pid is all that there is to go by."""
    with Script("print(42, flush=True); input()") as earlier:
        earlier.line()
        said, spool = home / "servers" / f"{earlier.process.pid}.json", home / "spool" / str(earlier.process.pid)
        said.parent.mkdir(parents=True)
        said.write_text(json.dumps({"pid": earlier.process.pid, "url": "http://127.0.0.1:8420"}))
        spool.mkdir(parents=True)
        for there in (True, False):
            assert app_home.running(home) == []
            with app_home.own_directory(home, "spool"):
                assert (said.exists(), spool.exists()) == (there, there)
            earlier.kill()


def test_the_home_is_its_owners_alone(home: Path) -> None:
    with app_home.announced(home, "http://127.0.0.1:8420"), app_home.own_directory(home, "spool") as own:
        for place in (home, home / "servers", own.parent, own):
            assert stat.S_IMODE(place.stat().st_mode) == 0o700, place


def test_what_a_living_server_has_stays(home: Path) -> None:
    with Script(SERVER, home) as server:
        theirs = home / "spool" / server.line()
        with app_home.own_directory(home, "spool"), app_home.own_directory(home, "spool"):
            assert (theirs / "upload").read_text() == "half of it"
        assert [path.name for path in (home / "spool").iterdir() if path.is_dir()] == [theirs.name]
