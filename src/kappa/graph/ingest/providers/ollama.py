"""Ollama: models on one's own machine, its API's `format` for the schema."""

from collections.abc import Sequence
from typing import Any

from kappa.graph.ingest.providers.adapter import Fault, Image, Reply, Rows, place, sdk, status_fault
from kappa.graph.ingest.providers.backoff import Trouble
from kappa.graph.ingest.providers.config import ProviderConfig


class _Blind(Exception):
    """A model that sees no images: asked all the same, its server fails, or it makes something up."""


class OllamaAdapter:
    def __init__(self, model: str, config: ProviderConfig, timeout: float) -> None:
        self._sdk: Any = sdk("ollama")
        self._http: Any = sdk("httpx")
        self._model = model
        self._dimensions = config.dimensions
        self._options = {"num_ctx": config.window, "num_predict": config.max_tokens, "temperature": 0}
        headers = {"Authorization": f"Bearer {config.key}"} if config.key else None
        self._client: Any = self._sdk.Client(host=config.base_url, timeout=timeout, headers=headers)
        inner = self._client._client  # the SDK shows neither the address nor the key that it found
        self.where = place(str(inner.base_url))
        key: str = inner.headers.get("authorization", "").removeprefix("Bearer ")
        self.secrets = (key,) if key else ()

    def ask(self, system: str, user: str, schema: dict[str, Any] | None, image: Image | None) -> Reply:
        asked: dict[str, Any] = {"role": "user", "content": user}
        if image is not None:
            able = self._client.show(self._model).capabilities
            if able is not None and "vision" not in able:  # an old server doesn't say
                raise _Blind(f"the model {self._model} sees no images")
            asked["images"] = [image.data]
        answer = self._client.chat(
            model=self._model,
            messages=[{"role": "system", "content": system}, asked],
            format=schema,
            options=self._options,
            stream=False,
        )
        return Reply(
            text=answer.message.content or "",
            cut_off=answer.done_reason == "length",
            declined=False,
            tokens_in=answer.prompt_eval_count or 0,
            tokens_out=answer.eval_count or 0,
        )

    def embed(self, texts: Sequence[str]) -> Rows:
        answer = self._client.embed(model=self._model, input=list(texts), dimensions=self._dimensions)
        return Rows(answer.embeddings, answer.prompt_eval_count or 0)

    def fault(self, error: Exception) -> Fault | None:
        if isinstance(error, _Blind):
            return Fault(Trouble.UNFIT, said=str(error))
        if isinstance(error, self._sdk.ResponseError):
            found: Any = error
            # The SDK keeps the status, but not the headers; the error that it replaced has them.
            response = getattr(error.__context__, "response", None)
            return status_fault(found.status_code, getattr(response, "headers", None), str(found.error))
        if isinstance(error, self._http.TimeoutException):
            return Fault(Trouble.TIMED_OUT)
        if isinstance(error, ConnectionError | self._http.TransportError):
            return Fault(Trouble.UNREACHABLE)
        return None

    def close(self) -> None:
        self._client.close()
