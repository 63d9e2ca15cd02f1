"""Anthropic: messages, with the schema as the format of the answer (newer models refuse a tool that they must call)."""

import base64
from collections.abc import Sequence
from typing import Any

from kappa.graph.ingest.providers.adapter import Fault, Image, Reply, Rows, no_key, place, sdk, status_fault, words
from kappa.graph.ingest.providers.backoff import Trouble
from kappa.graph.ingest.providers.config import STANDARD, ProviderConfig
from kappa.graph.ingest.providers.errors import ProviderRefused

CUT_OFF = ("max_tokens", "model_context_window_exceeded")


class AnthropicAdapter:
    def __init__(self, model: str, config: ProviderConfig, timeout: float) -> None:
        self._sdk: Any = sdk("anthropic")
        self._model = model
        self._max_tokens = config.max_tokens
        try:
            self._client: Any = self._sdk.Anthropic(
                api_key=config.key, base_url=config.base_url, timeout=timeout, max_retries=0
            )
        except self._sdk.CredentialsError:  # it looks for a profile, too
            raise no_key("anthropic", STANDARD["anthropic"].key_variable) from None
        if not (self._client.api_key or self._client.auth_token or self._client.credentials):
            raise no_key("anthropic", STANDARD["anthropic"].key_variable)
        self.where = place(str(self._client.base_url))
        secrets: tuple[str | None, ...] = (self._client.api_key, self._client.auth_token)
        self.secrets = tuple(secret for secret in secrets if secret)

    def ask(self, system: str, user: str, schema: dict[str, Any] | None, image: Image | None) -> Reply:
        content: list[dict[str, Any]] = []
        if image is not None:
            data = base64.b64encode(image.data).decode()
            source = {"type": "base64", "media_type": image.media_type, "data": data}
            content.append({"type": "image", "source": source})
        content.append({"type": "text", "text": user})
        form: dict[str, Any] = {}
        if schema is not None:
            form["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        answer = self._client.messages.create(
            model=self._model,
            system=system,
            messages=[{"role": "user", "content": content}],
            max_tokens=self._max_tokens,
            **form,
        )
        usage = answer.usage
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        return Reply(
            # Newer models think first, in blocks of their own.
            text="".join(block.text for block in answer.content if block.type == "text"),
            cut_off=answer.stop_reason in CUT_OFF,
            declined=answer.stop_reason == "refusal",
            tokens_in=usage.input_tokens + cached,
            tokens_out=usage.output_tokens,
        )

    def embed(self, texts: Sequence[str]) -> Rows:
        raise ProviderRefused("the provider 'anthropic' has no embeddings")

    def fault(self, error: Exception) -> Fault | None:
        if isinstance(error, self._sdk.APITimeoutError):
            return Fault(Trouble.TIMED_OUT)
        if isinstance(error, self._sdk.APIConnectionError):
            return Fault(Trouble.UNREACHABLE)
        if isinstance(error, self._sdk.APIStatusError):
            found: Any = error
            return status_fault(found.status_code, found.response.headers, words(found.body) or found.message)
        if isinstance(error, self._sdk.CredentialsError):
            return Fault(Trouble.DENIED)
        return None

    def close(self) -> None:
        self._client.close()
