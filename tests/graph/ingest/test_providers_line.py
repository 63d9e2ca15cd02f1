"""The line to a provider: limits as the server sees them, retries, the circuit, and who may stop a call."""

import itertools
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from email.utils import format_datetime

import pytest

from kappa.graph.ingest.extraction import BadExtraction, ProviderDown
from kappa.graph.ingest.providers import PROCESS, STANDARD, Switchboard, on_account
from kappa.graph.ingest.providers.backoff import Backoff, Trouble, seconds_of, trouble_of
from kappa.graph.ingest.providers.circuit import Circuit
from kappa.graph.ingest.providers.clock import Clock
from kappa.graph.ingest.providers.errors import CallStopped, ProviderRefused
from tests.graph.ingest.provider_calls import MODELS, NOON, Made, StillClock
from tests.graph.ingest.provider_server import Hangup, ProviderServer, Raw, Silence, Status
from tests.ground import eventually

TEXT = "A lease prevents double work."
ALL = pytest.mark.parametrize("provider", list(MODELS))


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as running:
        yield running


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def board(clock: StillClock) -> Switchboard:
    return Switchboard(clock)


@pytest.fixture
def made(board: Switchboard) -> Iterator[Made]:
    several = Made(board)
    yield several
    several.close()


def waiting(board: Switchboard, provider: str) -> float:
    return board.gauges["kappa_provider_calls_waiting", (provider,)]


def until_waiting(board: Switchboard, provider: str, count: int) -> None:
    eventually(lambda: waiting(board, provider) == count, what=f"{count} that wait")


# The limit


@ALL
@pytest.mark.parametrize("limit", [None, 3])
def test_no_more_calls_than_the_limit_reach_the_provider(
    provider: str, limit: int | None, server: ProviderServer, board: Switchboard, made: Made
) -> None:
    calls, allowed = 32, limit or STANDARD[provider].concurrency
    assert limit or allowed == {"openai": 8, "anthropic": 4, "ollama": 1}[provider]
    one = made.extractor(provider, server, concurrency=limit)
    # Uses of one provider share its limit, whatever they are and whoever made them.
    other = made.extractor(provider, server, concurrency=limit)
    asks = [lambda: one.extract(TEXT), lambda: other.transcribe(b"x", "image/png")]
    if provider != "anthropic":
        vectors = made.embedder(provider, server, concurrency=limit)
        asks.append(lambda: vectors.embed([TEXT]))
    server.hold()
    with ThreadPoolExecutor(calls) as pool:
        futures = [pool.submit(asks[number % len(asks)]) for number in range(calls)]
        until_waiting(board, provider, calls - allowed)
        server.wait_for(lambda: server.in_flight == allowed)
        assert board.gauges["kappa_provider_calls_in_flight", (provider,)] == allowed
        assert board.gauges["kappa_provider_calls_limit", (provider,)] == allowed
        server.let_go()
        for future in futures:
            future.result(30)
    assert len(server.asked) == calls
    assert server.most == allowed
    assert board.counters["kappa_provider_waits", (provider,)] == calls - allowed
    assert waiting(board, provider) == 0


def test_the_limit_is_one_for_the_process(server: ProviderServer, made: Made) -> None:
    before = PROCESS.counters.get(("kappa_provider_waits", ("ollama",)), 0)
    reader = made.extractor("ollama", server, PROCESS)
    vectors = made.embedder("ollama", server, PROCESS)
    server.hold()
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(reader.extract, TEXT), pool.submit(vectors.embed, [TEXT])]
        until_waiting(PROCESS, "ollama", 1)
        server.wait_for(lambda: server.in_flight == 1)
        server.let_go()
        for future in futures:
            future.result(30)
    assert server.most == 1
    assert PROCESS.counters["kappa_provider_waits", ("ollama",)] == before + 1


def test_turns_go_in_the_order_of_asking(server: ProviderServer, board: Switchboard, made: Made) -> None:
    model = made.extractor("ollama", server)
    server.hold()
    with ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(model.extract, "first")]
        server.wait_for(lambda: server.in_flight == 1)
        for number in range(8):
            futures.append(pool.submit(model.extract, f"text {number}"))
            until_waiting(board, "ollama", number + 1)
        server.let_go()
        for future in futures:
            future.result(30)
    texts = [asked.body["messages"][1]["content"] for asked in server.asked]
    assert [f"text {number}" in text for number, text in enumerate(texts[1:])] == [True] * 8


def test_a_call_that_waits_for_its_next_try_holds_no_place(server: ProviderServer, made: Made) -> None:
    between, go_on = threading.Event(), threading.Event()

    class Held(StillClock):
        def wait(self, seconds: float, should_stop: object) -> bool:
            between.set()
            return go_on.wait(10)

    model = made.extractor("ollama", server, Switchboard(Held()))
    server.steps.append(Status(429))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(model.extract, TEXT)
        assert between.wait(10)
        assert model.extract(TEXT).concepts  # the limit is 1
        go_on.set()
        assert first.result(10).concepts
    assert len(server.asked) == 3


def test_a_larger_limit_lets_more_in_at_once(server: ProviderServer, board: Switchboard, made: Made) -> None:
    model = made.extractor("ollama", server)
    server.hold()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(model.extract, TEXT) for _ in range(3)]
        until_waiting(board, "ollama", 2)
        made.extractor("ollama", server, concurrency=3)
        server.wait_for(lambda: server.in_flight == 3)
        server.let_go()
        for future in futures:
            future.result(30)


# Retries


@ALL
@pytest.mark.parametrize("code", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_a_status_that_passes_is_tried_again(
    provider: str, code: int, server: ProviderServer, clock: StillClock, made: Made
) -> None:
    server.steps += [Status(code), Status(code)]
    assert made.extractor(provider, server).extract(TEXT).concepts
    assert len(server.asked) == 3
    assert clock.waits == [1, 2]


@ALL
@pytest.mark.parametrize(
    ("code", "error"),
    [(400, BadExtraction), (413, BadExtraction), (422, BadExtraction), (404, ProviderRefused), (402, ProviderRefused)],
)
def test_a_status_that_stays_is_not(
    provider: str, code: int, error: type[Exception], server: ProviderServer, made: Made
) -> None:
    # The text of an answer decides nothing.
    server.always = Status(code, message="429 Too Many Requests: server overloaded, please retry")
    with pytest.raises(error, match=f"refused the request \\({code}\\)"):
        made.extractor(provider, server).extract(TEXT)
    assert len(server.asked) == 1


@ALL
def test_tries_are_bounded_and_their_distance_doubles_within_a_fifth(
    provider: str, server: ProviderServer, made: Made
) -> None:
    chances = itertools.cycle([0.0, 1.0, 0.25])
    clock = StillClock(chances)
    server.always = Status(429)
    with pytest.raises(ProviderDown, match=r"allows no more calls for now \(429\), tried 9 times") as caught:
        made.extractor(provider, server, Switchboard(clock), tries=9).extract(TEXT)
    assert len(server.asked) == 9
    wanted = [0.8 * 1, 1.2 * 2, 0.9 * 4, 0.8 * 8, 1.2 * 16, 0.9 * 32, 0.8 * 60, 60]
    assert clock.waits == pytest.approx(wanted)
    assert caught.value.retry_after == pytest.approx(0.9 * 60)


@ALL
def test_retry_after_is_honoured_in_seconds_and_as_a_date(
    provider: str, server: ProviderServer, clock: StillClock, made: Made
) -> None:
    date = format_datetime(NOON + timedelta(seconds=11 + 40), usegmt=True)
    server.steps += [Status(429, {"Retry-After": "10"}), Status(503, {"Retry-After": date}), Status(429)]
    assert made.extractor(provider, server).extract(TEXT).concepts
    # With the chance of a half: a tenth more than asked, never less; the date is 40 s after the first wait.
    assert clock.waits == pytest.approx([11, 44, 4])


@ALL
def test_who_asks_for_more_patience_than_a_thread_has_gets_it_from_the_job(
    provider: str, server: ProviderServer, clock: StillClock, made: Made
) -> None:
    server.always = Status(429, {"Retry-After": "600"})
    with pytest.raises(ProviderDown) as caught:
        made.extractor(provider, server).extract(TEXT)
    assert 600 <= caught.value.retry_after <= 720
    assert len(server.asked) == 1
    assert clock.waits == []


@pytest.mark.parametrize("header", ["soon", "-5", "", "Mon, 99 Foo 2026", "١٢"])
def test_a_retry_after_that_says_nothing_is_ignored(header: str) -> None:
    assert seconds_of(header, StillClock()) is None


def test_a_date_that_has_passed_asks_for_no_patience() -> None:
    assert seconds_of(format_datetime(NOON - timedelta(hours=1), usegmt=True), StillClock()) == 0
    assert Backoff().after(1, 0.0, StillClock()) == 1


def test_every_status_means_something() -> None:
    found = {code: trouble_of(code) for code in range(300, 600)}
    assert {code for code, trouble in found.items() if trouble.passing} == {408, 409, 425, 429, *range(500, 600)}
    assert {code for code, trouble in found.items() if trouble.down} == set(range(500, 600))
    assert {code for code, trouble in found.items() if trouble is Trouble.DENIED} == {401, 403}


@ALL
def test_silence_and_a_lost_connection_are_tried_again(
    provider: str, server: ProviderServer, board: Switchboard, made: Made
) -> None:
    server.steps += [Silence(), Hangup()]
    assert made.extractor(provider, server, timeout=3).extract(TEXT).concepts
    counted = board.counters
    assert len(server.asked) == 3
    assert counted["kappa_provider_calls", (provider, "timed_out")] == 1
    assert counted["kappa_provider_calls", (provider, "unreachable")] == 1
    assert counted["kappa_provider_calls", (provider, "answered")] == 1


@ALL
def test_nobody_there_is_a_provider_that_is_down(
    provider: str, board: Switchboard, clock: StillClock, made: Made
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        model = made.extractor(provider, f"http://127.0.0.1:{taken.getsockname()[1]}", tries=3)
        with pytest.raises(ProviderDown, match=r"at 127\.0\.0\.1:\d+ can't be reached, tried 3 times"):
            model.extract(TEXT)
    assert clock.waits == [1, 2]
    assert board.counters["kappa_provider_calls", (provider, "unreachable")] == 3


# The circuit


@ALL
def test_the_circuit_opens_probes_and_closes(
    provider: str, server: ProviderServer, board: Switchboard, clock: StillClock, made: Made
) -> None:
    model = made.extractor(provider, server, tries=2)
    server.always = Status(500)
    for _ in range(2):
        with pytest.raises(ProviderDown, match=r"fails \(500\), tried 2 times"):
            model.extract(TEXT)
    with pytest.raises(ProviderDown, match="is down: no call is made for another 30 s"):
        model.extract(TEXT)  # its first try is the fifth failure in a row
    assert len(server.asked) == 5
    assert board.gauges["kappa_provider_circuits_open", (provider,)] == 1
    clock.pass_by(20)
    with pytest.raises(ProviderDown) as caught:
        model.extract(TEXT)
    assert caught.value.retry_after == 10
    assert len(server.asked) == 5
    clock.pass_by(10)
    with pytest.raises(ProviderDown, match="another 30 s"):
        model.extract(TEXT)
    assert len(server.asked) == 6  # one probe, and no second try
    clock.pass_by(30)
    server.always = Raw(b"{}")
    with pytest.raises(Exception, match=provider):
        model.extract(TEXT)  # a bad answer is an answer
    assert board.gauges["kappa_provider_circuits_open", (provider,)] == 0
    assert len(server.asked) == 7


def test_only_one_call_probes(server: ProviderServer, clock: StillClock, made: Made) -> None:
    model = made.extractor("openai", server)
    server.steps += [Status(500)] * 5
    with pytest.raises(ProviderDown):
        model.extract(TEXT)
    clock.pass_by(30)
    server.hold()
    with ThreadPoolExecutor(1) as pool:
        probe = pool.submit(model.extract, TEXT)
        server.wait_for(lambda: server.in_flight == 1)
        for _ in range(3):
            with pytest.raises(ProviderDown) as caught:
                model.extract(TEXT)
            assert caught.value.retry_after == 5
        server.let_go()
        assert probe.result(10).concepts
    assert model.extract(TEXT).concepts
    assert len(server.asked) == 7


def test_those_who_wait_for_their_turn_are_told_when_it_opens(
    server: ProviderServer, board: Switchboard, made: Made
) -> None:
    model = made.extractor("ollama", server)
    server.always = Status(500)
    server.hold()
    with ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(model.extract, TEXT) for _ in range(10)]
        until_waiting(board, "ollama", 9)
        server.let_go()
        errors = [future.exception(30) for future in futures]
    assert all(isinstance(error, ProviderDown) for error in errors)
    assert len(server.asked) == 5


def test_a_429_is_no_sign_of_a_provider_that_is_down(server: ProviderServer, made: Made) -> None:
    model = made.extractor("openai", server, tries=20)
    server.steps += [Status(500)] * 4 + [Status(429)] + [Status(500)] * 4
    assert model.extract(TEXT).concepts
    assert len(server.asked) == 10


def test_addresses_have_circuits_of_their_own(server: ProviderServer, made: Made) -> None:
    with ProviderServer() as broken:
        broken.always = Status(500)
        with pytest.raises(ProviderDown):
            made.extractor("openai", broken).extract(TEXT)
    assert made.extractor("openai", server).extract(TEXT).concepts


def test_a_probe_that_was_given_up_lets_another_one_go(clock: StillClock) -> None:
    circuit = Circuit("x", clock, failures=1)
    circuit.enter().failed()
    clock.pass_by(30)
    with pytest.raises(KeyboardInterrupt), circuit.enter():
        raise KeyboardInterrupt
    circuit.enter().succeeded()
    assert not circuit.is_open


def test_late_failures_do_not_keep_it_open_longer(clock: StillClock) -> None:
    circuit = Circuit("x", clock, failures=2)
    passes = [circuit.enter() for _ in range(3)]
    passes[0].failed()
    passes[1].failed()
    clock.pass_by(25)
    passes[2].failed()
    clock.pass_by(5)
    circuit.enter()


# Who no longer wants to know


def test_a_cancelled_call_does_not_wait_for_its_next_try(server: ProviderServer, made: Made) -> None:
    cancelled = threading.Event()

    class Cancelling(Clock):
        """The wait is real; the job is cancelled when it begins."""

        def wait(self, seconds: float, should_stop: object) -> bool:
            cancelled.set()
            return super().wait(3600, cancelled.is_set)

    server.always = Status(429)
    model = made.extractor("openai", server, Switchboard(Cancelling()))
    with on_account(cancelled.is_set) as account, pytest.raises(CallStopped, match="between two tries"):
        model.extract(TEXT)
    assert len(server.asked) == 1
    assert account.usage.calls == 0
    with on_account(cancelled.is_set), pytest.raises(CallStopped):
        model.extract(TEXT)
    assert len(server.asked) == 1


def test_a_cancelled_call_does_not_wait_for_its_turn(server: ProviderServer, board: Switchboard, made: Made) -> None:
    model, cancelled = made.extractor("ollama", server), threading.Event()

    def cancellable() -> None:
        with on_account(cancelled.is_set):
            model.extract(TEXT)

    server.hold()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(model.extract, TEXT)
        server.wait_for(lambda: server.in_flight == 1)
        second = pool.submit(cancellable)
        until_waiting(board, "ollama", 1)
        third = pool.submit(model.extract, TEXT)
        until_waiting(board, "ollama", 2)
        cancelled.set()
        assert isinstance(second.exception(10), CallStopped)
        assert waiting(board, "ollama") == 1
        server.let_go()
        assert first.result(10).concepts
        assert third.result(10).concepts
    assert len(server.asked) == 2


def test_threads_with_the_same_context_are_on_the_same_account(server: ProviderServer, made: Made) -> None:
    model = made.extractor("openai", server)
    with ThreadPoolExecutor(8) as pool, on_account() as account:
        futures = [pool.submit(copy_context().run, model.extract, TEXT) for _ in range(24)]
        for future in futures:
            future.result(30)
    assert account.usage == model.usage
    assert account.usage.calls == 24
