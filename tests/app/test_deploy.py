"""The files of `deploy/` are well-formed and fit together, and those that can be run here are."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kappa.app.settings import Settings
from tests.app.conftest import Up
from tests.ground import eventually, kg, require_program

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    """The Containerfile, a line an instruction."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]
    known = {
        *(
            "ARG",
            "CMD",
            "COPY",
            "ENTRYPOINT",
            "ENV",
            "EXPOSE",
            "FROM",
            "HEALTHCHECK",
            "RUN",
            "USER",
            "VOLUME",
            "WORKDIR",
        )
    }
    made = [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines]
    assert [name for name, _ in made if name not in known] == []
    return made


def test_the_image_is_built_in_stages_of_files_that_are_there() -> None:
    stages = [re.fullmatch(r"\$\{PYTHON\} AS (\w+)", what) for name, what in instructions() if name == "FROM"]
    assert [stage and stage[1] for stage in stages] == ["build", "kappa"]
    name, base = instructions()[0]
    assert (name, base.split(":")[0]) == ("ARG", "PYTHON=docker.io/library/python")
    assert re.search(r":3\.13[\w.-]*@sha256:[0-9a-f]{64}$", base), "a tag can be another image tomorrow"
    for name, what in instructions():
        if name == "COPY" and not what.startswith("--from="):
            *sources, _ = what.split()
            assert [source for source in sources if not (ROOT / source).exists()] == []
    (taken,) = [what for name, what in instructions() if name == "COPY" and what.startswith("--from=")]
    assert taken == "--from=build /opt/kappa /opt/kappa"
    extras = next(what for name, what in instructions() if name == "ARG" and what.startswith("EXTRAS="))
    there = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras.removeprefix("EXTRAS=").split(",")) <= set(there)


def test_the_image_has_what_sandboxes_tools() -> None:
    *_, last = [at for at, (name, _) in enumerate(instructions()) if name == "FROM"]
    installed = " ".join(what for name, what in instructions()[last:] if name == "RUN")
    assert {"bubblewrap", "libseccomp2"} <= set(installed.split())


def test_the_image_looks_after_a_server_at_the_port_that_it_was_given(up: Up) -> None:
    (arguments,) = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    _, *look = json.loads(arguments.partition("CMD ")[2])

    def at(port: object) -> int:
        env = {"PATH": os.environ["PATH"], "KAPPA_PORT": str(port)}
        return subprocess.run([sys.executable, *look], env=env, stderr=subprocess.DEVNULL, check=False).returncode

    assert at(up.url.rsplit(":", 1)[1]) == 0
    with socket.socket() as deaf:  # nobody else gets its port, and nobody answers there
        deaf.bind(("127.0.0.1", 0))
        assert at(deaf.getsockname()[1]) == 1


def test_the_image_reads_documents_without_a_provider() -> None:
    extras = next(what for name, what in instructions() if name == "ARG" and what.startswith("EXTRAS="))
    assert {"app", "ingest"} <= set(extras.removeprefix("EXTRAS=").split(","))


def test_every_extra_is_explained_where_installing_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    section = (ROOT / "docs" / "deploy.md").read_text().partition("## Install\n")[2].partition("\n## ")[0]
    rows = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("|"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(project["optional-dependencies"])


def test_nobody_is_told_to_install_a_package_of_that_name_from_an_index() -> None:
    places = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py"), *ROOT.glob("deploy/**/*"), ROOT / "README.md"]
    told = re.compile(r"pip install (-\S+ )*'?kappa(\[|\s|$)")
    assert [str(path.relative_to(ROOT)) for path in places if path.is_file() and told.search(path.read_text())] == []


def test_the_image_runs_the_server_as_nobody_in_particular() -> None:
    last = {name: what for name, what in instructions() if name in ("USER", "ENTRYPOINT", "CMD", "VOLUME", "EXPOSE")}
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last["USER"])
    assert (json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])) == (["tini", "--", "kg"], ["up"])
    assert last["EXPOSE"] == str(Settings.model_fields["port"].default)
    environment = next(what for name, what in instructions() if name == "ENV")
    assert f"KAPPA_HOME={last['VOLUME']}" in environment.split()


def test_the_locks_versions_become_constraints_for_the_image(tmp_path: Path) -> None:
    command = next(what for name, what in instructions() if name == "RUN" and what.startswith("sed "))
    made = tmp_path / "constraints.txt"
    subprocess.run(["sh", "-c", command.replace("/tmp/constraints.txt", str(made))], cwd=ROOT, check=True)
    lines = [line for line in made.read_text().splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if not re.match(r"[\w.\[\]-]+==\S+( ;.+)?$", line)] == []


def test_the_image_installs_nothing_but_by_hash() -> None:
    commands = [part for name, what in instructions() if name == "RUN" for part in re.split(r" && ", what)]
    installs = [part for part in commands if re.search(r"\bpip install\b", part) and "--dry-run" not in part]
    assert len(installs) == 3
    for command in installs:
        by_hash = "--require-hashes" in command and "--only-binary :all:" in command
        ours = "--no-index" in command and command.endswith('"${wheel}"')
        assert "--no-deps" in command
        assert by_hash or ours, command
    assert not any("pip wheel" in part and "--no-build-isolation" not in part for part in commands)


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_systemd_has_nothing_to_say_against_a_unit(unit: Path, tmp_path: Path) -> None:
    program = require_program("systemd-analyze")
    text = unit.read_text()
    assert "/opt/kappa/bin/kg" in text
    checked = tmp_path / unit.name
    checked.write_text(text.replace("/opt/kappa/bin/kg", "/bin/true"))
    done = subprocess.run([program, "verify", str(checked)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
    checked.write_text(checked.read_text().replace("KillMode=process", "KillMode=kindly"))
    planted = subprocess.run([program, "verify", str(checked)], capture_output=True, text=True, check=False)
    assert unit.name in planted.stderr, "a fault is found"


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_a_unit_gives_a_server_its_grace_and_leaves_tool_runs_to_the_next(unit: Path) -> None:
    read = ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    read.read_string(unit.read_text())
    service = read["Service"]
    assert int(service["TimeoutStopSec"]) >= Settings.model_fields["grace"].default + 10
    assert service["KillMode"] == "process"
    assert service["User"] != "root"
    home = f"KAPPA_HOME=/var/lib/{service['StateDirectory']}"
    assert home in service["Environment"].split()


def test_the_compose_file_fits_together() -> None:
    compose: Any = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"postgres", "pgbouncer", "server"}
    server = services["server"]
    assert (DEPLOY / server["build"]["context"]).resolve() == ROOT
    assert (ROOT / server["build"]["dockerfile"]).exists()
    pooled, direct = (conninfo_to_dict(server["environment"][name].replace("${POSTGRES_PASSWORD}", "secret"))
                      for name in ("KAPPA_DATABASE_URL", "KAPPA_DATABASE_DIRECT_URL"))  # fmt: skip
    bouncer = pooler()
    assert (pooled["host"], pooled["port"]) == ("pgbouncer", bouncer["pgbouncer"]["listen_port"])
    assert direct["host"] == "postgres"
    assert pooled["dbname"] == direct["dbname"] == services["postgres"]["environment"]["POSTGRES_DB"]
    assert pooled["dbname"] in bouncer["databases"]
    (users,) = services["pgbouncer"]["configs"]
    assert users["target"] == bouncer["pgbouncer"]["auth_file"]
    assert compose["configs"][users["source"]]["content"] == f'"{pooled["user"]}" "${{POSTGRES_PASSWORD}}"\n'
    (role,) = services["postgres"]["configs"]
    assert role["target"].startswith("/docker-entrypoint-initdb.d/")
    made = compose["configs"][role["source"]]["content"].replace(
        "${POSTGRES_PASSWORD:?put it into deploy/.env}", "secret"
    )
    assert f"CREATE ROLE {direct['user']} LOGIN PASSWORD '{direct['password']}'" in made
    assert services["postgres"]["environment"].get("POSTGRES_USER", "postgres") != direct["user"], "who is a superuser"
    mounts = [one.split(":")[0] for service in services.values() for one in service.get("volumes", ())]
    assert {one for one in mounts if not one.startswith("./")} == set(compose["volumes"])
    assert all((DEPLOY / one).exists() for one in mounts if one.startswith("./"))
    assert {name for service in services.values() for name in service.get("depends_on", ())} <= set(services)
    # As much shut as the pods are: tests of those say what a server needs to write to.
    assert (server["read_only"], server["tmpfs"], server["cap_drop"]) == (True, ["/tmp"], ["ALL"])
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))
    assert int(server["stop_grace_period"].removesuffix("s")) >= Settings.model_fields["grace"].default + 10


def pooler() -> ConfigParser:
    read = ConfigParser(interpolation=None, inline_comment_prefixes=None)
    read.read(DEPLOY / "pgbouncer.ini")
    return read


@pytest.fixture
def pooled_url(url: str) -> Iterator[str]:
    """Through PgBouncer as `deploy/pgbouncer.ini` has it, but for addresses."""
    program = require_program("pgbouncer")
    address = conninfo_to_dict(url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # PgBouncer refuses to be root, and another account can't read a test's private directory.
    place = Path(tempfile.mkdtemp(prefix="kappa-deploy-", dir="/var/tmp"))
    config = pooler()
    there = f"host={address['host']} port={address['port']} dbname={address['dbname']}"
    config["databases"] = {str(address["dbname"]): there}
    config["pgbouncer"].update(listen_addr="127.0.0.1", listen_port=port, auth_file=str(place / "users.txt"))
    (place / "users.txt").write_text(f'"{address["user"]}" "{address["password"]}"\n')
    with (place / "pgbouncer.ini").open("w") as file:
        config.write(file)
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        for path in (place, *place.iterdir()):
            shutil.chown(path, user)
    process = subprocess.Popen(
        [program, "-q", str(place / "pgbouncer.ini")], user=user, cwd="/", stderr=subprocess.DEVNULL
    )
    pooled = make_conninfo(url, port=port)

    def answers() -> bool:
        try:
            psycopg.connect(pooled).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        eventually(answers, what="PgBouncer answers")
        yield pooled
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(place)


def test_a_server_behind_that_pgbouncer_does_a_job(url: str, pooled_url: str, start_up: Callable[..., Up]) -> None:
    up = start_up(env={"KAPPA_DATABASE_URL": pooled_url, "KAPPA_DATABASE_DIRECT_URL": url})
    done = kg("job", "enqueue", "self_test", "--watch", "--json", home=up.home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "succeeded"
    assert up.stop() == 0, up.said


def manifests() -> dict[tuple[str, str], Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def pods() -> dict[str, Any]:
    return {name: one["spec"]["template"] for (kind, name), one in manifests().items() if kind == "Deployment"}


def test_the_manifests_fit_together() -> None:
    known = manifests()
    assert [kind for kind, _ in known] == [
        "PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget", "Deployment",
    ]  # fmt: skip
    for name, pod in pods().items():
        labels, spec = pod["metadata"]["labels"], pod["spec"]
        assert known["Deployment", name]["spec"]["selector"]["matchLabels"] == labels
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        claims = {
            one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "persistentVolumeClaim" in one
        }
        assert claims <= {name for kind, name in known if kind == "PersistentVolumeClaim"}
    server = pods()["kappa"]
    (port,) = server["spec"]["containers"][0]["ports"]
    assert port["containerPort"] == Settings.model_fields["port"].default
    service = known["Service", "kappa"]["spec"]
    assert (service["selector"], service["ports"][0]["targetPort"]) == (server["metadata"]["labels"], port["name"])
    assert known["PodDisruptionBudget", "kappa"]["spec"]["selector"]["matchLabels"] == server["metadata"]["labels"]
    worker = pods()["kappa-worker"]["spec"]["containers"][0]
    assert worker["args"][worker["args"].index("--server") + 1] == f"http://kappa:{service['ports'][0]['port']}"


def test_the_manifests_say_where_their_secrets_come_from() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    made = set(re.findall(r"create secret generic (\S+)", text))
    used = {
        volume["secret"]["secretName"]
        for pod in pods().values()
        for volume in pod["spec"]["volumes"]
        if "secret" in volume
    }
    for pod in pods().values():
        for variable in pod["spec"]["containers"][0].get("env", ()):
            used.add(variable["valueFrom"]["secretKeyRef"]["name"])
            assert f"--from-literal={variable['valueFrom']['secretKeyRef']['key']}=" in text
    assert used == made


def test_no_service_gives_a_pod_variables_that_are_read_as_settings() -> None:
    names = [name for kind, name in manifests() if kind == "Service"]
    linked = {f"{name.upper().replace('-', '_')}_PORT" for name in names}
    assert linked & {f"KAPPA_{field.upper()}" for field in Settings.model_fields} == {"KAPPA_PORT"}
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in pods().values())


@pytest.mark.parametrize("name", ["kappa", "kappa-worker"])
def test_a_pod_has_its_grace_and_no_more_rights_than_it_needs(name: str) -> None:
    spec = pods()[name]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= Settings.model_fields["grace"].default + 10
    user = next(what for instruction, what in instructions() if instruction == "USER")
    assert f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" == user
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert "memory" in container["resources"]["limits"]
