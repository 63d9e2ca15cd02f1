"""Any provider's model as an `Extractor`, which can also read images."""

from collections.abc import Callable

from kappa.graph.ingest.extraction import Context, Extraction
from kappa.graph.ingest.providers import answer
from kappa.graph.ingest.providers.account import Usage
from kappa.graph.ingest.providers.adapter import Image, Reply
from kappa.graph.ingest.providers.line import Line

NOTHING = Context()


class ModelExtractor:
    """A model that reads texts. Safe to use from many threads."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._adapter = line.adapter

    @property
    def name(self) -> str:
        return f"{self._line.provider}/{self._line.model}"

    @property
    def usage(self) -> Usage:
        """Of all its calls so far."""
        return self._line.account.usage

    def extract(self, text: str, context: Context = NOTHING) -> Extraction:
        asked = answer.question(text, context)
        reply = self._asked(lambda: self._adapter.ask(answer.instructions(), asked, answer.schema(), None))
        try:
            return answer.extraction(reply.text)
        except answer.Unusable as error:
            raise self._line.bad(str(error)) from None

    def transcribe(self, image: bytes, media_type: str) -> str:
        """What an image says, in words."""
        picture = Image(image, media_type)
        asked = "Write down what this image says."
        return self._asked(lambda: self._adapter.ask(answer.instructions("transcribe"), asked, None, picture)).text

    def close(self) -> None:
        self._adapter.close()

    def _asked(self, ask: Callable[[], Reply]) -> Reply:
        reply = self._line.call(ask)
        if reply.cut_off:
            raise self._line.bad(f"was cut off after {reply.tokens_out} tokens")
        if reply.declined:
            raise self._line.bad("declined to answer")
        return reply
