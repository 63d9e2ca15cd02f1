"""A server on loopback that answers like OpenAI, Anthropic and Ollama, well or badly, and watches who comes.

It is as strict as they are about the form of a request: a wrong one gets 400, a wrong key 401.
"""

import json
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KEY = "a-key-that-nobody-may-see-0123456789"
MASKED = "sk-ab***6789"
"""As OpenAI shows a key that it does not know."""
KNOWLEDGE: dict[str, Any] = {
    "concepts": [
        {"label": "lease", "description": "a claim that ends", "search_terms": ["claim"]},
        {"label": "double work", "description": "", "search_terms": []},
    ],
    "instances": [
        {"concept": "lease", "quote": "A lease prevents double work."},
        {"concept": "double work", "quote": "double work"},
    ],
    "relations": [
        {
            "from": "lease", "to": "double work", "type": "PREVENTS", "confidence": 0.9,
            "category": "causal", "modality": "",
        },
    ],
}  # fmt: skip
TOKENS_IN, TOKENS_OUT = 1200, 300


@dataclass(frozen=True, slots=True)
class Said:
    """What the model answers."""

    text: str
    ended: str = "stop"
    """Or `length`, or `refusal`."""


@dataclass(frozen=True, slots=True)
class Status:
    """An error of the API."""

    code: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    message: str = "no"


@dataclass(frozen=True, slots=True)
class Raw:
    """A body that no API would send."""

    body: bytes
    kind: str = "application/json"


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer until the server ends."""


@dataclass(frozen=True, slots=True)
class Hangup:
    """The connection is closed instead."""


Step = Said | Status | Raw | Silence | Hangup
WELL = Said(json.dumps(KNOWLEDGE))


@dataclass(frozen=True, slots=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ProviderServer:
    """Use it as a context manager. `steps` are what the next requests get; after them all goes well."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()
        self.always: Step = WELL
        self.chosen: Callable[[Asked], Step | None] = lambda asked: None
        """What a request gets in place of them, where this says so."""
        self.asked: list[Asked] = []
        self.in_flight = 0
        self.most = 0
        self.vector: Callable[[str], list[float]] = lambda text: [float(len(text)), 3.0, 4.0]
        self.capabilities: list[str] | None = ["completion", "vision"]
        """What Ollama says that a model can do; an old server says nothing."""
        self._let_in = threading.Event()
        self._let_in.set()
        self._ended = threading.Event()
        self.changed = threading.Condition()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server.serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="provider")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._let_in.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def hold(self) -> None:
        """From now on requests wait for `let_go`."""
        self._let_in.clear()

    def let_go(self) -> None:
        self._let_in.set()

    def wait_for(self, wanted: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(wanted, 10), (self.in_flight, len(self.asked))

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        if request.path == "/api/show":  # no question to a model
            able = {} if self.capabilities is None else {"capabilities": self.capabilities}
            send(request, 200, {}, json.dumps({"details": {"family": "llama"}, "model_info": {}, **able}).encode())
            return
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Asked(request.path, headers, body)
        with self.changed:
            self.asked.append(asked)
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            step = self.chosen(asked) or (self.steps.popleft() if self.steps else self.always)
            self.changed.notify_all()
        self._let_in.wait(30)
        with self.changed:
            # Before the answer: a caller that has it may already be back with the next one.
            self.in_flight -= 1
        with suppress(OSError):  # who asked is gone
            self._answer(request, asked, step)

    def _answer(self, request: BaseHTTPRequestHandler, asked: Asked, step: Step) -> None:
        match step:
            case Silence():
                self._ended.wait(30)
                request.close_connection = True
            case Hangup():
                request.close_connection = True
            case Raw(body, kind):
                send(request, 200, {"Content-Type": kind}, body)
            case Status(code, headers, message):
                send(request, code, headers, json.dumps(error(asked.path, code, message)).encode())
            case Said():
                code, said = self._reply(asked, step)
                send(request, code, {}, json.dumps(said).encode())

    def _reply(self, asked: Asked, step: Said) -> tuple[int, dict[str, Any]]:
        match asked.path:
            case "/v1/chat/completions":
                return openai_chat(asked, step)
            case "/v1/embeddings":
                return openai_embeddings(asked, self.vector)
            case "/v1/messages":
                return anthropic_messages(asked, step)
            case "/api/chat":
                return ollama_chat(asked, step)
            case "/api/embed":
                vectors = [self.vector(text) for text in asked.body["input"]]
                return 200, {"model": asked.body["model"], "embeddings": vectors, "prompt_eval_count": TOKENS_IN}
            case _:
                return 404, {"error": f"there is no {asked.path}"}


def send(request: BaseHTTPRequestHandler, code: int, headers: dict[str, str], body: bytes) -> None:
    request.send_response(code)
    for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(body))}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


def error(path: str, code: int, message: str) -> dict[str, Any]:
    if path.startswith("/api/"):
        return {"error": message}
    if path == "/v1/messages":
        return {"type": "error", "error": {"type": f"error_{code}", "message": message}}
    return {"error": {"message": message, "type": f"error_{code}", "param": None, "code": None}}


def openai_chat(asked: Asked, step: Said) -> tuple[int, dict[str, Any]]:
    if asked.headers.get("authorization") != f"Bearer {KEY}":
        return 401, error(asked.path, 401, f"Incorrect API key provided: {MASKED}")
    form = asked.body.get("response_format")
    if form is not None and not (
        form["type"] == "json_schema"
        and form["json_schema"]["strict"] is True
        and form["json_schema"]["name"].isidentifier()
        and is_strict(form["json_schema"]["schema"])
    ):
        return 400, error(asked.path, 400, "Invalid schema for response_format")
    refused = step.ended == "refusal"
    message = {"role": "assistant", "content": None if refused else step.text, "refusal": "no" if refused else None}
    return 200, {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": asked.body["model"],
        "choices": [{"index": 0, "finish_reason": "stop" if refused else step.ended, "message": message}],
        "usage": {
            "prompt_tokens": TOKENS_IN, "completion_tokens": TOKENS_OUT, "total_tokens": TOKENS_IN + TOKENS_OUT
        },
    }  # fmt: skip


def openai_embeddings(asked: Asked, vector: Callable[[str], list[float]]) -> tuple[int, dict[str, Any]]:
    if asked.body["encoding_format"] != "float":
        return 400, error(asked.path, 400, "only float here")
    rows = [
        {"object": "embedding", "index": index, "embedding": vector(text)}
        for index, text in enumerate(asked.body["input"])
    ]
    usage = {"prompt_tokens": TOKENS_IN, "total_tokens": TOKENS_IN}
    # The order is the index's, not the list's.
    return 200, {"object": "list", "model": asked.body["model"], "data": rows[::-1], "usage": usage}


def anthropic_messages(asked: Asked, step: Said) -> tuple[int, dict[str, Any]]:
    # Its SDK used to say the one, and now says the other.
    if KEY not in (asked.headers.get("x-api-key"), asked.headers.get("authorization", "").removeprefix("Bearer ")):
        return 401, error(asked.path, 401, "invalid x-api-key")
    if "anthropic-version" not in asked.headers or "max_tokens" not in asked.body or "temperature" in asked.body:
        return 400, error(asked.path, 400, "invalid_request_error")
    form = asked.body.get("output_config", {}).get("format")
    if form is not None and not (form["type"] == "json_schema" and is_strict(form["schema"])):
        return 400, error(asked.path, 400, "output_config.format: invalid schema")
    ended = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"}[step.ended]
    return 200, {
        "id": "msg_1", "type": "message", "role": "assistant", "model": asked.body["model"],
        "content": [
            {"type": "thinking", "thinking": "{not the answer}", "signature": "x"}, {"type": "text", "text": step.text}
        ],
        "stop_reason": ended, "stop_sequence": None,
        "usage": {"input_tokens": TOKENS_IN - 200, "cache_read_input_tokens": 200, "output_tokens": TOKENS_OUT},
    }  # fmt: skip


def ollama_chat(asked: Asked, step: Said) -> tuple[int, dict[str, Any]]:
    if asked.body["stream"] is not False or asked.body["options"]["num_ctx"] < 8192:
        return 400, error(asked.path, 400, "a stream, or a window that cuts the text off")
    return 200, {
        "model": asked.body["model"], "created_at": "2026-11-16T12:00:00Z", "done": True, "done_reason": step.ended,
        "message": {"role": "assistant", "content": step.text},
        "prompt_eval_count": TOKENS_IN, "eval_count": TOKENS_OUT,
    }  # fmt: skip


def is_strict(schema: Any) -> bool:
    """What structured output asks of a schema: every object closed, every property required, no bounds on numbers."""
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object":
        closed = schema.get("additionalProperties") is False
        if not closed or sorted(schema["required"]) != sorted(schema["properties"]):
            return False
        return all(is_strict(one) for one in schema["properties"].values())
    if {"minimum", "maximum", "minLength", "maxLength", "pattern"} & schema.keys():
        return False
    return is_strict(schema.get("items"))
