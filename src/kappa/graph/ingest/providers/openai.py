"""OpenAI, and whatever speaks like it: chat completions, the form that other servers know, too."""

import base64
from collections.abc import Sequence
from typing import Any

from kappa.graph.ingest.providers.adapter import Fault, Image, Reply, Rows, no_key, place, sdk, status_fault, words
from kappa.graph.ingest.providers.backoff import Trouble
from kappa.graph.ingest.providers.config import STANDARD, ProviderConfig


class OpenAIAdapter:
    def __init__(self, model: str, config: ProviderConfig, timeout: float) -> None:
        self._sdk: Any = sdk("openai")
        self._model = model
        self._max_tokens = config.max_tokens
        self._dimensions = config.dimensions
        key = config.key
        try:
            self._client: Any = self._sdk.OpenAI(api_key=key, base_url=config.base_url, timeout=timeout, max_retries=0)
        except self._sdk.OpenAIError:
            if config.base_url is None:
                raise no_key("openai", STANDARD["openai"].key_variable) from None
            # A server of one's own may want none; the SDK wants one.
            self._client = self._sdk.OpenAI(api_key="none", base_url=config.base_url, timeout=timeout, max_retries=0)
        self.where = place(str(self._client.base_url))
        self.secrets = (self._client.api_key,)

    def ask(self, system: str, user: str, schema: dict[str, Any] | None, image: Image | None) -> Reply:
        content: list[dict[str, Any]] = [{"type": "text", "text": user}]
        if image is not None:
            data = base64.b64encode(image.data).decode()
            content.append({"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{data}"}})
        form: dict[str, Any] = {}
        if schema is not None:
            named = {"name": "knowledge", "strict": True, "schema": schema}
            form["response_format"] = {"type": "json_schema", "json_schema": named}
        answer = self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "system", "content": system}, {"role": "user", "content": content}],
            max_completion_tokens=self._max_tokens,
            **form,
        )
        choice, usage = answer.choices[0], answer.usage
        return Reply(
            text=choice.message.content or "",
            cut_off=choice.finish_reason == "length",
            declined=choice.finish_reason == "content_filter" or bool(getattr(choice.message, "refusal", None)),
            tokens_in=usage.prompt_tokens if usage else 0,
            tokens_out=usage.completion_tokens if usage else 0,
        )

    def embed(self, texts: Sequence[str]) -> Rows:
        fewer = {} if self._dimensions is None else {"dimensions": self._dimensions}
        # Unasked, the SDK asks for base64, which not every server knows.
        answer = self._client.embeddings.create(model=self._model, input=list(texts), encoding_format="float", **fewer)
        rows = [row.embedding for row in sorted(answer.data, key=lambda row: row.index)]
        return Rows(rows, answer.usage.prompt_tokens if answer.usage else 0)

    def fault(self, error: Exception) -> Fault | None:
        if isinstance(error, self._sdk.APITimeoutError):
            return Fault(Trouble.TIMED_OUT)
        if isinstance(error, self._sdk.APIConnectionError):
            return Fault(Trouble.UNREACHABLE)
        if isinstance(error, self._sdk.APIStatusError):
            found: Any = error
            return status_fault(found.status_code, found.response.headers, words(found.body) or found.message)
        return None

    def close(self) -> None:
        self._client.close()
