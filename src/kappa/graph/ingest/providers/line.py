"""The one way to a provider: every call of the process goes through its line.

A line keeps the limit of calls at once, tries again where that may help, counts, and gives up at once while the
provider is down. A call that waits for another try holds no place: the limit is what the provider sees.
"""

import re
import threading
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import count
from typing import TypeVar

from kappa.graph.ingest.extraction import BadExtraction, ProviderDown
from kappa.graph.ingest.providers.account import Account, Usage, charge, stop_asked
from kappa.graph.ingest.providers.adapter import Adapter, Fault, Reply, Rows
from kappa.graph.ingest.providers.backoff import Backoff, Trouble, seconds_of
from kappa.graph.ingest.providers.circuit import Circuit
from kappa.graph.ingest.providers.clock import Clock
from kappa.graph.ingest.providers.errors import CallStopped, ProviderRefused
from kappa.graph.ingest.providers.prices import Prices
from kappa.graph.ingest.providers.turns import Turns

Answer = TypeVar("Answer", Reply, Rows)
Counted = Mapping[tuple[str, tuple[str, ...]], float]

_KEY_LIKE = re.compile(r"\b(sk|pk)-[\w*.…-]{4,}")
_WORDS = {
    Trouble.UNREACHABLE: "can't be reached",
    Trouble.TIMED_OUT: "does not answer in time",
    Trouble.ERROR: "fails",
    Trouble.LIMITED: "allows no more calls for now",
    Trouble.BUSY: "is busy",
}
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)
"""What comes of an SDK, or of looking at what it gave, when the answer is none."""
MOST_SAID = 300


class Tally:
    """Numbers by name and labels, that only grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, tuple[str, ...]], float] = {}

    def add(self, name: str, *labels: str, by: float = 1) -> None:
        with self._lock:
            self._counted[name, labels] = self._counted.get((name, labels), 0) + by

    @property
    def counted(self) -> Counted:
        with self._lock:
            return dict(self._counted)


class Line:
    """One model at one address of a provider."""

    def __init__(
        self, provider: str, model: str, adapter: Adapter, prices: Prices, turns: Turns, circuit: Circuit,
        backoff: Backoff, clock: Clock, tally: Tally,
    ) -> None:  # fmt: skip
        self.provider = provider
        self.model = model
        self.adapter = adapter
        self.account = Account()
        """Of all calls on this line."""
        self._prices = prices
        self._turns = turns
        self._circuit = circuit
        self._backoff = backoff
        self._clock = clock
        self._tally = tally

    def call(self, ask: Callable[[], Answer]) -> Answer:
        """Make a call of the adapter's, as often as it takes and is allowed."""
        should_stop = stop_asked()
        for tried in count(1):
            if should_stop():
                raise CallStopped(f"the call of {self.provider} was stopped")
            self._circuit.check()
            with self._turns.turn(should_stop), self._circuit.enter() as passed:
                begun = self._clock.now()
                try:
                    answer = ask()
                except Exception as error:
                    fault = self.adapter.fault(error)
                    if fault is None:
                        if isinstance(error, UNREADABLE):
                            passed.succeeded()
                            self._tally.add("kappa_provider_calls", self.provider, "answered")
                            what = f"answered something that is not of its API ({type(error).__name__})"
                            raise self.bad(what) from error
                        raise
                    if fault.trouble.down:
                        passed.failed()
                    else:
                        passed.succeeded()
                    self._tally.add("kappa_provider_calls", self.provider, fault.trouble)
                else:
                    passed.succeeded()
                    self._tally.add("kappa_provider_calls", self.provider, "answered")
                    self._charge(answer)
                    return answer
                finally:
                    self._tally.add("kappa_provider_call_seconds", self.provider, by=self._clock.now() - begun)
            wait = self._wait_after(fault, tried)
            if not self._clock.wait(wait, should_stop):
                raise CallStopped(f"the call of {self.provider} was stopped between two tries")
        raise AssertionError

    def bad(self, what: str) -> BadExtraction:
        """An answer that came, was paid, and is of no use."""
        self._tally.add("kappa_provider_bad_answers", self.provider)
        return BadExtraction(f"{self.provider}/{self.model} {what}")

    def _wait_after(self, fault: Fault, tried: int) -> float:
        """Seconds until the next try, or the error that says that there is none."""
        name, trouble = f"{self.provider} at {self.adapter.where}", fault.trouble
        status = f" ({fault.status})" if fault.status else ""
        if trouble is Trouble.DENIED:
            # What it says here may show a part of the key.
            raise ProviderRefused(f"{name} does not accept the key{status}")
        if not trouble.passing:
            refused = f"{name} refused the request{status}: {self._safe(fault.said)}"
            raise BadExtraction(refused) if trouble is Trouble.UNFIT else ProviderRefused(refused)
        self._circuit.check()
        asked = seconds_of(fault.retry_after, self._clock)
        wait = self._backoff.after(tried, asked, self._clock)
        # A wait beyond the cap is not for a thread that holds a lane's slot.
        if tried >= self._backoff.tries or wait > self._backoff.cap * (1 + self._backoff.jitter):
            times = "once" if tried == 1 else f"{tried} times"
            raise ProviderDown(f"{name} {_WORDS[trouble]}{status}, tried {times}", wait)
        return wait

    def _safe(self, said: str) -> str:
        for secret in self.adapter.secrets:
            said = said.replace(secret, "…")
        said = " ".join(_KEY_LIKE.sub("…", said).split())
        return said if len(said) <= MOST_SAID else said[:MOST_SAID] + "…"

    def _charge(self, answer: Reply | Rows) -> None:
        cost = self._prices.price(self.provider, self.model, answer.tokens_in, answer.tokens_out)
        usage = Usage(1, answer.tokens_in, answer.tokens_out, cost or Decimal(0), int(cost is None))
        self.account.add(usage)
        charge(usage)
        for direction, tokens in (("in", answer.tokens_in), ("out", answer.tokens_out)):
            self._tally.add("kappa_provider_tokens", self.provider, self.model, direction, by=tokens)
        if cost is not None:
            self._tally.add("kappa_provider_cost_dollars", self.provider, self.model, by=float(cost))


class Switchboard:
    """All lines of a process: a limit for each provider, a circuit for each of its addresses, the counts of all."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self._lock = threading.Lock()
        self._turns: dict[str, Turns] = {}
        self._circuits: dict[tuple[str, str], Circuit] = {}
        self._tally = Tally()

    def line(
        self, provider: str, model: str, adapter: Adapter, prices: Prices, concurrency: int, backoff: Backoff
    ) -> Line:
        """Whoever names a limit last sets it for all calls of the provider."""
        with self._lock:
            turns = self._turns.get(provider)
            if turns is None:
                turns = self._turns[provider] = Turns(concurrency, self.clock)
            else:
                turns.resize(concurrency)
            name = f"{provider} at {adapter.where}"
            circuit = self._circuits.setdefault((provider, adapter.where), Circuit(name, self.clock))
        return Line(provider, model, adapter, prices, turns, circuit, backoff, self.clock, self._tally)

    @property
    def counters(self) -> Counted:
        """What has happened so far, by the names of docs/metrics.md without `_total`."""
        found = dict(self._tally.counted)
        with self._lock:
            for provider, turns in self._turns.items():
                use = turns.use
                found["kappa_provider_waits", (provider,)] = use.waits
                found["kappa_provider_wait_seconds", (provider,)] = use.waited
        return found

    @property
    def gauges(self) -> Counted:
        """What is so now."""
        found: dict[tuple[str, tuple[str, ...]], float] = {}
        with self._lock:
            for provider, turns in self._turns.items():
                use = turns.use
                found["kappa_provider_calls_limit", (provider,)] = use.limit
                found["kappa_provider_calls_in_flight", (provider,)] = use.busy
                found["kappa_provider_calls_waiting", (provider,)] = use.waiting
                circuits = [circuit for (of, _), circuit in self._circuits.items() if of == provider]
                found["kappa_provider_circuits_open", (provider,)] = sum(one.is_open for one in circuits)
        return found


PROCESS = Switchboard()
"""That of this process."""
