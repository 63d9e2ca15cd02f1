"""Every setting of the application, read from the environment once.

Each field is the variable `KAPPA_` + its name in capitals; docs/configuration.md lists them, and a test keeps that
list whole. No other module reads a variable of Kappa's.
"""

import ipaddress
import os
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kappa.pg import Bounds, KappaError

PREFIX = "KAPPA_"


OTHERS = {"graph_workers": "PARALLEL_QUERY_MAX_WORKERS", "graph_timeout": "PARALLEL_QUERY_TIMEOUT_SECONDS"}
"""Variables of similar programs, for settings whose own variable is unset."""


def _or_else(field: str) -> AliasChoices:
    return AliasChoices(_variable(field), OTHERS[field])


def _variable(field: str) -> str:
    return PREFIX + field.upper()


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class BadSetting(KappaError):
    """A setting has a value that can't be used."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Settings(BaseSettings):
    """Where things are and how large they may get."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, populate_by_name=True)

    home: Path = Field(default=Path("~/.kappa"), description="Where Kappa keeps its data")
    database_url: SecretStr | None = Field(
        default=None, description="A PostgreSQL 15 or newer to use in place of the embedded one"
    )
    database_direct_url: SecretStr | None = Field(
        default=None,
        description="The same database without the pooler, where `KAPPA_DATABASE_URL` leads through PgBouncer in "
        "transaction mode; the same as that if unset",
    )
    postgres_bin: Path | None = Field(
        default=None,
        description="The directory of the PostgreSQL programs to embed; the wheel's if unset, else the system's",
    )
    postgres_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="The embedded server's TCP port on 127.0.0.1; a free one if unset, then always the same",
    )
    postgres_user: str | None = Field(
        default=None,
        description="As root: the account that runs the embedded server, one that nothing else runs as; if unset "
        "`kappa-postgres`, which is made",
    )
    pool_queue: int = Field(default=10, ge=1, description="Connections that the pool `queue` may open")
    pool_graph: int = Field(default=20, ge=1, description="Connections that the pool `graph` may open")
    pool_auth: int = Field(default=5, ge=1, description="Connections that the pool `auth` may open")
    pool_fleet: int = Field(
        default=5,
        ge=5,
        description="Connections that the pool `fleet` may open: claims, beats, updates, settlements, and one for "
        "the rest",
    )
    pool_wait: float = Field(
        default=10.0, gt=0, description="Seconds that a caller waits for a connection before it gets an error"
    )

    host: str = Field(default="127.0.0.1", description="The address that `kg up` listens on")
    port: int = Field(default=8420, ge=0, le=65535, description="The port that `kg up` listens on; 0 takes a free one")
    max_body: int = Field(default=1024 * 1024, ge=1024, description="Bytes that a request's body may have")
    max_connections: int | None = Field(
        default=None,
        ge=1,
        description="Connections at once; if unset, as many as the process may open files, less some for other uses, "
        "and 50,000 at most",
    )
    max_connections_per_address: int | None = Field(
        default=None,
        ge=1,
        description="Connections at once from one address, as a proxy's or a whole fleet's; half of all if unset",
    )
    max_upload: int = Field(default=100_000_000, ge=1, le=100_000_000, description="Bytes that a document may have")
    trusted_proxies: str | None = Field(
        default=None,
        description="Addresses and networks of reverse proxies, as `127.0.0.1, 10.0.0.0/8`: from these alone "
        "`X-Forwarded-For` and `X-Forwarded-Proto` are believed. Unset: from nobody",
    )
    max_live_jobs: int = Field(
        default=1000,
        ge=1,
        description="Jobs of one person that are not over: awaiting approval, waiting or running. Those with "
        "`workers:manage` have no limit",
    )
    max_kept_uploads: int = Field(
        default=1_000_000_000,
        ge=1,
        description="Bytes of documents that one person has uploaded and that are still kept, which is a day. Those "
        "with `jobs:manage` have no limit",
    )
    questions_per_person: int = Field(
        default=6, ge=1, description="Questions of one person to the graph that are answered at once; the rest waits"
    )
    mcp_hosts: str | None = Field(
        default=None,
        description="Names that agents reach `/mcp` by, as `kappa.example, other.example:8443`, beside loopback's "
        "and the address of `KAPPA_HOST`; a request under another name is refused. Unset where `KAPPA_HOST` is every "
        "address: any name",
    )
    session_hours: float = Field(default=12, gt=0, le=24 * 365, description="How long a sign-in lasts")
    audit_days: int = Field(default=365, ge=1, le=36_500, description="How long entries of the audit log are kept")
    threadpool_tokens: int = Field(
        default=200, ge=1, description="`THREADPOOL_TOKENS`: blocking calls of the server at once"
    )
    task_semaphore_size: int = Field(
        default=5,
        ge=1,
        description="`TASK_SEMAPHORE_SIZE`: claims' worth of `request_task` (64 callers each) that are served at once; "
        "the next caller is told `busy`",
    )
    graph_workers: int = Field(
        default=8,
        ge=1,
        le=32,
        validation_alias=_or_else("graph_workers"),
        description="Workers of all questions to the graph together, 1–32, if the database says none; "
        "`PARALLEL_QUERY_MAX_WORKERS` if unset",
    )
    graph_timeout: float = Field(
        default=30,
        ge=5,
        le=120,
        validation_alias=_or_else("graph_timeout"),
        description="Seconds that a question may take, 5–120, if the database says none; "
        "`PARALLEL_QUERY_TIMEOUT_SECONDS` if unset",
    )
    graph_snapshot_mb: int = Field(
        default=1024,
        ge=0,
        description="Megabytes that the graph in memory may take; 0 keeps none, and questions are asked in SQL",
    )
    graph_vectors_mb: int = Field(
        default=1024, ge=0, description="Megabytes that the graph's embeddings in memory may take; 0 keeps none"
    )
    provider: str = Field(default="local", description="The provider that extracts where a request names none")
    embedder: str = Field(default="local", description="The model that embeds; another one means to embed all anew")
    chunk_target: int = Field(default=1000, ge=1, description="Words that a chunk of a document should have")
    chunk_least: int = Field(default=800, ge=1, description="Words that it has at least")
    chunk_most: int = Field(default=1500, ge=1, description="Words that it has at most")
    chunk_overlap: int = Field(default=200, ge=0, description="Words that it repeats of the chunk before it")
    reading_memory_mb: int = Field(
        default=512,
        ge=64,
        le=65_536,
        description="Megabytes that reading one document may take, beside the document; one that needs more is refused",
    )
    reading_ocr_memory_mb: int = Field(
        default=2048, ge=64, le=65_536, description="The same for a document with pages that OCR reads"
    )
    reading_seconds: int = Field(
        default=60,
        ge=1,
        le=86_400,
        description="Seconds of processor time that reading one document may take, and again each page that OCR reads; "
        "four times that by the clock",
    )
    reading_processes: int = Field(
        default=2, ge=1, le=64, description="Documents that the API reads at once, and each worker beside it"
    )
    max_concurrent_threads: int = Field(
        default=32, ge=1, le=1000, description="Threads that all jobs of a worker may start beside those they run in"
    )
    grace: float = Field(default=30, ge=0, description="Seconds that running jobs and requests get when a server stops")
    log_format: LogFormat = Field(
        default=LogFormat.TEXT, description="How the lines of the log on standard error look: `text` or `json`"
    )
    log_level: LogLevel = Field(
        default=LogLevel.INFO, description="What is logged: `debug`, `info`, `warning` or `error` and what is graver"
    )
    metrics_public: bool = Field(default=False, description="Whether `/metrics` is answered without a token")
    otel_endpoint: str | None = Field(
        default=None,
        pattern="^https?://",
        description="An OpenTelemetry collector, as `http://127.0.0.1:4318`, that gets spans by OTLP/HTTP; needs the "
        "extra `otel`",
    )
    queue_enabled: bool = Field(
        default=True, description="Whether tool runs go through the queue; if not, they are done in the request itself"
    )
    runner_max_concurrency: int = Field(
        default=1, ge=1, description="`RUNNER_MAX_CONCURRENCY`: tool runs at once without the queue"
    )
    unsandboxed_tools: Literal["yes", "no"] = Field(
        default="no",
        description="Whether process tools run where bubblewrap can't sandbox them: `yes`, and they can read "
        "everything that Kappa's user can read; `no`, and they are refused",
    )
    tool_paths: str | None = Field(
        default=None,
        pattern="^/[^:/][^:]*(:/[^:/][^:]*)*$",
        description="Paths that sandboxed tools can read in addition to `/usr`, as in `/opt/conda:/srv/models`",
    )
    handlers: str | None = Field(
        default=None,
        description="`package.module:engine_setup`, a function that declares handlers on the engine it gets",
    )
    embedding_dimensions: int | None = Field(
        default=None, ge=1, description="Numbers of a provider's embedding, where its model can be asked for fewer"
    )
    provider_tries: int = Field(default=5, ge=1, le=20, description="Tries of one call of a provider")
    prices: Path | None = Field(default=None, description="A file of prices that count before those Kappa knows")
    openai_model: str | None = Field(default=None, description="OpenAI's model for texts and images")
    openai_embedding_model: str | None = Field(default=None, description="OpenAI's model for embeddings")
    openai_base_url: str | None = Field(
        default=None, pattern="^https?://", description="Where OpenAI's API is, or a server that speaks like it"
    )
    openai_api_key: SecretStr | None = Field(default=None, description="The key; `OPENAI_API_KEY` if unset")
    openai_timeout: float | None = Field(default=None, gt=0, description="Seconds that one call may take")
    openai_concurrency: int | None = Field(default=None, ge=1, description="Calls at once, of a whole process")
    anthropic_model: str | None = Field(default=None, description="Anthropic's model for texts and images")
    anthropic_base_url: str | None = Field(
        default=None, pattern="^https?://", description="Where Anthropic's API is, or a server that speaks like it"
    )
    anthropic_api_key: SecretStr | None = Field(default=None, description="The key; `ANTHROPIC_API_KEY` if unset")
    anthropic_timeout: float | None = Field(default=None, gt=0, description="Seconds that one call may take")
    anthropic_concurrency: int | None = Field(default=None, ge=1, description="Calls at once, of a whole process")
    ollama_model: str | None = Field(default=None, description="Ollama's model for texts and images")
    ollama_embedding_model: str | None = Field(default=None, description="Ollama's model for embeddings")
    ollama_base_url: str | None = Field(
        default=None, pattern="^https?://", description="Where Ollama's API is, or a server that speaks like it"
    )
    ollama_api_key: SecretStr | None = Field(default=None, description="The key; `OLLAMA_API_KEY` if unset")
    ollama_timeout: float | None = Field(default=None, gt=0, description="Seconds that one call may take")
    ollama_concurrency: int | None = Field(default=None, ge=1, description="Calls at once, of a whole process")
    server: str | None = Field(
        default=None, description="The server that `kg` talks to; the one on this machine if unset"
    )
    token: SecretStr | None = Field(default=None, description="The token that `kg` shows; the operator's if unset")

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: str | None) -> str | None:
        _networks(value)
        return value

    @property
    def proxies(self) -> tuple[Network, ...]:
        """The networks of `trusted_proxies`."""
        return _networks(self.trusted_proxies)

    @property
    def tools_need_sandbox(self) -> bool:
        return self.unsandboxed_tools == "no"

    @property
    def shown_to_tools(self) -> list[Path]:
        return [Path(path) for path in (self.tool_paths or "").split(":") if path]

    @property
    def bounds(self) -> dict[str, Bounds]:
        sizes = {"queue": self.pool_queue, "graph": self.pool_graph, "auth": self.pool_auth, "fleet": self.pool_fleet}
        return {name: Bounds(1, size, self.pool_wait) for name, size in sizes.items()}


def _networks(text: str | None) -> tuple[Network, ...]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    return tuple(map(ipaddress.ip_network, parts))  # its error names the part


def mistyped() -> list[tuple[str, str | None]]:
    """Variables of the environment that look like settings and are none, each with the setting that may be meant."""
    known = [_variable(name) for name in Settings.model_fields]
    found = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known)
    return [(name, next(iter(get_close_matches(name.upper(), known, n=1, cutoff=0.8)), None)) for name in found]


def _other(variable: str) -> str | None:
    return next((other for field, other in OTHERS.items() if _variable(field) == variable), None)


def load() -> Settings:
    """The settings of this process; an error names the variable that is wrong."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name = "_".join(str(part) for part in wrong["loc"])
        if name in Settings.model_fields:
            name = _variable(name)
        elif (other := _other(name)) is not None and not os.environ.get(name):
            name = other  # pydantic names the first of the two
        raise BadSetting(f"{name} is {wrong['input']!r}: {wrong['msg']}") from None
