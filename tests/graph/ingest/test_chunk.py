"""Chunks: they cover the text, their offsets are exact, and cutting ends for every rule and every text."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappa.graph import BadQuestion
from kappa.graph.ingest.chunk import LONGEST_WORD, ChunkRule, ChunkSpan, chunk

SMALL = ChunkRule(target=10, least=8, most=15, overlap=4)
SENTENCE = "Otters live in rivers and they eat the fish. "


@st.composite
def rules(draw: st.DrawFn) -> ChunkRule:
    least = draw(st.integers(1, 12))
    target = least + draw(st.integers(0, 8))
    return ChunkRule(target, least, target + draw(st.integers(0, 8)), draw(st.integers(0, least - 1)))


WORDS = st.sampled_from(
    ["otter", "Fish.", "e.g.", "J.", "eat?", '"Yes!"', "...", "a", "Zürich", "42", "(so)", "x" * 60]
)
GAPS = st.sampled_from([" ", " ", " ", "\n", "\n\n", "  \n \n\t", "\u00a0", "\t"])
SPACED = st.lists(st.tuples(WORDS, GAPS), max_size=150).map(lambda pairs: "".join(word + gap for word, gap in pairs))
ANY = st.one_of(
    SPACED,
    st.text(max_size=300),
    st.text(alphabet="日本語。！かな ไทย x.\n", max_size=400),
    st.text(alphabet="x. ", max_size=60).map(lambda text: text * 20),
)


def check(text: str, rule: ChunkRule) -> list[ChunkSpan]:
    """What holds of all chunks of all texts."""
    spans = chunk(text, rule)
    assert spans == chunk(text, rule)
    assert [span.ordinal for span in spans] == list(range(len(spans)))
    if not text:
        assert spans == []
        return spans
    assert spans[0].start == 0
    assert spans[-1].end == len(text)
    for before, after in pairwise(spans):
        assert before.start < after.start <= before.end < after.end
    assert all(span.words <= rule.most for span in spans)
    assert all(span.words >= rule.least for span in spans[:-1])
    assert all(len(text[span.start : span.end].split()) <= span.words for span in spans)
    return spans


@settings(deadline=None, max_examples=300)
@given(ANY, rules())
def test_chunks_cover_every_text_by_every_rule(text: str, rule: ChunkRule) -> None:
    check(text, rule)


@settings(deadline=None, max_examples=300)
@given(SPACED, rules())
def test_words_are_counted_and_repeated_as_the_rule_says(text: str, rule: ChunkRule) -> None:
    spans = check(text, rule)
    for span in spans:
        assert span.words == len(text[span.start : span.end].split())
    for before, after in pairwise(spans):
        repeated = len(text[after.start : before.end].split())
        assert (rule.overlap + 1) // 2 <= repeated <= rule.overlap


def test_a_text_within_the_most_is_one_chunk() -> None:
    text = " " + "word " * 1500
    assert chunk(text) == [ChunkSpan(0, 0, len(text), 1500)]
    assert [span.words for span in chunk(text + "more ")] == [1000, 701]


def test_a_text_of_blanks_is_one_chunk_without_words() -> None:
    assert chunk(" \n ") == [ChunkSpan(0, 0, 3, 0)]


def test_the_paragraph_nearest_to_the_target_comes_before_any_sentence() -> None:
    text = "One two three. Four five six seven.\n\nEight nine.\n\nTen eleven. " + "more " * 20
    first = chunk(text, ChunkRule(8, 5, 15, 0))[0]
    assert text[: first.end].endswith("seven.\n\n")


def test_a_sentence_comes_before_a_line_and_a_line_before_a_hard_cut() -> None:
    rule = ChunkRule(6, 3, 9, 0)
    after_sentence = "a b c dog. E f g\nh i j k l m n o p q r"
    assert after_sentence[: chunk(after_sentence, rule)[0].end] == "a b c dog. "
    after_line = "a b c d\ne f g h i j k l m n o p q r"
    assert after_line[: chunk(after_line, rule)[0].end] == "a b c d\n"
    assert chunk("a b c d e f g h i j k l m n", rule)[0].words == 6


@pytest.mark.parametrize("text", ["as Dr. Smith", "as J. Smith", "see Fig. 3 there", "so e.g. Otters", "so cf. Otters"])
def test_an_abbreviation_ends_no_sentence(text: str) -> None:
    whole = f"one two three {text} and so on. Then came much more of all that was to come"
    first = chunk(whole, ChunkRule(5, 3, 12, 0))[0]
    assert whole[: first.end].endswith("so on. ")


def test_the_next_chunk_begins_with_a_sentence() -> None:
    text = SENTENCE * 20
    spans = chunk(text, ChunkRule(27, 20, 40, 14))
    assert len(spans) > 3
    assert all(text[span.start :].startswith("Otters live") for span in spans)
    repeated = {len(text[b.start : a.end].split()) for a, b in pairwise(spans)}
    assert repeated == {9}


def test_scripts_without_blanks_are_cut_at_their_sentences() -> None:
    text = "日本語の文章です。" * 50
    spans = check(text, SMALL)
    assert len(spans) > 10
    assert all(text[: span.end].endswith("。") for span in spans)
    assert len(check("ภาษาไทย" * 100, SMALL)) > 10


def test_a_token_without_end_is_cut() -> None:
    spans = check("x" * 100_000, SMALL)
    assert max(span.end - span.start for span in spans) <= SMALL.most * LONGEST_WORD


@pytest.mark.parametrize(
    "numbers", [(10, 0, 15, 0), (10, 11, 15, 0), (16, 8, 15, 0), (10, 8, 15, 8), (10, 8, 15, -1), (10, -5, 15, 0)]
)
def test_a_rule_that_contradicts_itself_is_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(BadQuestion, match="words"):
        ChunkRule(*numbers)


@pytest.mark.parametrize("unit", [SENTENCE, "word ", ".", "...... ", "\n", " ", "a.) ", "日", "x", "No. "])
def test_no_text_is_slow(unit: str) -> None:
    """What takes the square of its length takes longer than a test may."""
    text = unit * (1_000_000 // len(unit))
    check(text, ChunkRule())


def test_the_default_rule_is_that_of_the_documents() -> None:
    text = (SENTENCE * 30 + "\n\n") * 40
    spans = check(text, ChunkRule())
    assert all(800 <= span.words <= 1500 for span in spans)
    assert all(re.search(r"\n\n$", text[: span.end]) for span in spans)
