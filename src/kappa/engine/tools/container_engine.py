"""Speaks with a container engine, Docker or Podman, over its socket.

Every call ends in time. What the engine can't do now is `RunnerUnavailable`, whatever library it was that noticed; what
it says about a container or its command is a value or an error of its own. Nothing here knows of runs.
"""

import tarfile
import threading
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from requests.exceptions import ReadTimeout, RequestException
from urllib3.exceptions import HTTPError, ReadTimeoutError

from kappa.engine.errors import EngineError
from kappa.engine.tools.run import RunnerUnavailable

# The library has no types: everything of it that is used stands in this module.
_docker: Any = import_module("docker")
_errors: Any = import_module("docker.errors")
_types: Any = import_module("docker.types")

ANSWERS_WITHIN = 30.0
OLDEST_API = "1.41"
PIECE = 65536
STREAMS = {1: "stdout", 2: "stderr"}
# What engines say when it is the command that can't be started, and not they who can't start it.
UNUSABLE = ('exec: "', "executable file not found", "exec format error", "no such file or directory: unknown")


class Refused(EngineError):
    """The engine will never do this, however often it is asked."""


class NameTaken(Refused):
    """There is a container of that name."""


class ImageMissing(Refused):
    """The engine doesn't have the image."""


class CommandUnusable(Refused):
    """The image has no such command, or it can't be executed."""


@dataclass(frozen=True, slots=True)
class Container:
    """What the engine says of a container."""

    id: str
    status: str
    pid: int
    exit_code: int
    out_of_memory: bool
    started_at: datetime
    memory: int
    """Bytes that it may use."""
    labels: Mapping[str, str]

    @property
    def running(self) -> bool:
        return self.status in ("running", "paused", "restarting", "stopping")

    @property
    def ended(self) -> bool:
        return self.status in ("exited", "stopped")

    @property
    def began(self) -> bool:
        return self.running or self.ended


@dataclass(frozen=True, slots=True)
class Traits:
    """What is different from engine to engine."""

    podman: bool
    rootless: bool
    plain_cgroups: bool
    """It makes control groups itself, where it is told to, and doesn't leave that to systemd."""


class ContainerEngine:
    """One engine. Connects when it is first asked for something."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._connected: Any = None
        self._podman = False
        self._traits: Traits | None = None

    def close(self) -> None:
        with self._lock:
            if self._connected is not None:
                self._connected.close()
                self._connected = None

    def traits(self) -> Traits:
        if self._traits is None:
            with self._answers() as client:
                info = client.info()
            options: list[str] = info.get("SecurityOptions") or []
            self._traits = Traits(
                podman=self._podman,
                rootless=any("rootless" in option for option in options),
                plain_cgroups=info.get("CgroupDriver") == "cgroupfs",
            )
        return self._traits

    def create(
        self,
        name: str,
        image: str,
        *,
        host: Mapping[str, Any],
        ulimits: Mapping[str, int],
        as_self: bool = False,
        **facts: object,
    ) -> None:
        """Make a container, and don't start it. `as_self`: inside, the engine's user has the id that he has outside."""
        with self._answers() as client:
            hard = [_types.Ulimit(name=limit, soft=most, hard=most) for limit, most in ulimits.items()]
            settings = client.create_host_config(**host, ulimits=hard)
            if as_self:
                settings["UsernsMode"] = "keep-id"
            try:
                # What the library would tell the tool of the worker's proxies may hold a password.
                client.create_container(image, name=name, host_config=settings, use_config_proxy=False, **facts)
            except _errors.NotFound:
                raise ImageMissing(image) from None
            except _errors.APIError as error:
                # Docker gives the conflict its own status, Podman a 500.
                if error.status_code == 409 or "already in use" in _said(error):
                    raise NameTaken(name) from None
                if error.status_code == 400:
                    raise Refused(_said(error)) from None
                raise

    def open_directories(self, name: str, paths: Collection[str]) -> None:
        """Let everybody write to these directories of a container that was made, and make those it doesn't have.

        Docker refuses this where the root is read-only.
        """
        archive = bytearray()
        for path in sorted(paths):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive += entry.tobuf()
        # Two empty blocks are the end. Podman reads no further, and fails at times because of the rest of a whole
        # record, with which a TarFile would end.
        archive += bytes(2 * tarfile.BLOCKSIZE)
        with self._answers() as client:
            client.put_archive(name, "/", bytes(archive))

    def volumes(self, image: str) -> list[str]:
        """Where an image asks for directories of its own on the host's disk."""
        with self._answers() as client:
            try:
                seen: Any = client.inspect_image(image)
            except _errors.NotFound:
                raise ImageMissing(image) from None
        facts: Any = seen.get("Config") or {}
        named: Any = facts.get("Volumes") or {}
        return sorted({str(PurePosixPath(path)) for path in named})

    def start(self, name: str) -> None:
        with self._answers() as client:
            try:
                client.start(name)
            except _errors.APIError as error:
                if any(sign in _said(error) for sign in UNUSABLE):
                    raise CommandUnusable(_said(error)) from None
                raise

    def look(self, name: str) -> Container | None:
        with self._answers() as client:
            try:
                seen: Any = client.inspect_container(name)
            except _errors.NotFound:
                return None
        state: Any = seen["State"]
        host: Any = seen.get("HostConfig") or {}
        return Container(
            id=seen["Id"],
            status=state["Status"],
            pid=state.get("Pid") or 0,
            exit_code=state.get("ExitCode") or 0,
            out_of_memory=bool(state.get("OOMKilled")),
            started_at=datetime.fromisoformat(state["StartedAt"]),
            memory=host.get("Memory") or 0,
            labels=seen["Config"].get("Labels") or {},
        )

    def kill(self, name: str) -> None:
        with self._answers() as client:
            try:
                client.kill(name, "SIGKILL")
            except _errors.NotFound:
                return
            except _errors.APIError as error:
                if error.status_code != 409:  # it doesn't run
                    raise

    def remove(self, name: str) -> None:
        with self._answers() as client:
            try:
                client.remove_container(name, force=True, v=True)
            except _errors.NotFound:
                return

    def labelled(self, label: str) -> list[Mapping[str, str]]:
        """The labels of every container that has this one, whatever its state."""
        with self._answers() as client:
            return [seen.get("Labels") or {} for seen in client.containers(all=True, filters={"label": [label]})]

    def logs(self, name: str, streams: frozenset[str], within: float) -> Iterator[tuple[str, bytes]]:
        """What these streams hold up to now, piece by piece, as much as comes within this time; who has enough stops.

        In a flood on one stream the engine may look for long for a word on the other.
        """
        until = time.monotonic() + within
        with self._answers() as client:
            # The library's own method can't tell the streams apart, and can't be left early without leaving its
            # connection open.
            place = f"{client.base_url}/v{client.api_version}/containers/{name}/logs"
            asked = {stream: int(stream in streams) for stream in STREAMS.values()}
            with suppress(ReadTimeout, ReadTimeoutError), client.get(
                place, params=asked, stream=True, timeout=within
            ) as response:  # fmt: skip
                if response.status_code == 404:
                    return
                response.raise_for_status()
                for stream, piece in _frames(response.raw):
                    yield stream, piece
                    if time.monotonic() > until:
                        return

    @contextmanager
    def _answers(self) -> Generator[Any]:
        try:
            yield self._client()
        except _errors.APIError as error:
            raise RunnerUnavailable(f"the container engine can't: {_said(error)}") from error
        except (_errors.DockerException, RequestException, HTTPError, OSError) as error:
            raise RunnerUnavailable("the container engine doesn't answer") from error

    def _client(self) -> Any:
        with self._lock:
            if self._connected is None:
                version = self._introduce()
                self._connected = _docker.APIClient(base_url=self._url, version=version, timeout=ANSWERS_WITHIN)
            return self._connected

    def _introduce(self) -> str:
        """Which API it speaks. The library would ask for all its versions, which takes Podman half a second."""
        stranger = _docker.APIClient(base_url=self._url, version=OLDEST_API, timeout=ANSWERS_WITHIN)
        try:
            response = stranger.get(f"{stranger.base_url}/_ping", timeout=ANSWERS_WITHIN)
            response.raise_for_status()
            self._podman = "Libpod-API-Version" in response.headers
            return response.headers["Api-Version"]
        finally:
            stranger.close()


def _said(error: Any) -> str:
    return str(error.explanation or error)


def _frames(source: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The engine's way of sending two streams as one: a byte that names the stream, a length, the bytes."""
    while len(head := _exactly(source, 8)) == 8:
        stream, left = STREAMS.get(head[0], "stdout"), int.from_bytes(head[4:], "big")
        while left:
            piece = source.read(min(left, PIECE))
            if not piece:
                return
            left -= len(piece)
            yield stream, piece


def _exactly(source: BinaryIO, count: int) -> bytes:
    got = b""
    while len(got) < count and (piece := source.read(count - len(got))):
        got += piece
    return got
