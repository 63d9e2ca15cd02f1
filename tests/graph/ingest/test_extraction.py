"""What is kept of what a provider says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kappa.graph.ingest.extraction import (
    Dropped,
    Extraction,
    FoundConcept,
    FoundInstance,
    FoundRelation,
    Quote,
    check,
)

TEXT = "Otters live in rivers.\nThey eat “fresh”   fish — daily. Otters live in rivers."


def instances(*found: FoundInstance) -> Extraction:
    return Extraction((FoundConcept("Otter"),), found)


def test_a_quote_gets_its_place() -> None:
    checked = check(instances(FoundInstance("otter", "live in rivers")), TEXT)
    assert checked.instances == (Quote("Otter", "live in rivers", 7, 21),)
    assert checked.dropped == Dropped()


def test_a_quote_that_is_not_in_the_text_is_dropped_and_counted() -> None:
    checked = check(instances(FoundInstance("Otter", "Otters live in lakes"), FoundInstance("Otter", " ")), TEXT)
    assert checked.instances == ()
    assert checked.dropped == Dropped(quotes=2)


def test_marks_and_white_space_may_differ_and_the_text_says_how_it_is_written() -> None:
    checked = check(instances(FoundInstance("Otter", 'They eat "fresh" fish - daily.')), TEXT)
    (quote,) = checked.instances
    assert quote.quote == TEXT[quote.start : quote.end] == "They eat “fresh”   fish — daily."


def test_of_two_places_the_one_that_was_named_is_taken() -> None:
    second = TEXT.rindex("Otters")
    found = FoundInstance("Otter", "Otters live in rivers.", second)
    assert check(instances(found), TEXT).instances[0].start == second
    wrong = FoundInstance("Otter", "Otters live in rivers.", 5)
    assert check(instances(wrong), TEXT).instances[0].start == 0


def test_what_can_not_be_written_is_dropped_and_counted() -> None:
    relation = FoundRelation("Otter", "river", "LIVES_IN", 1.5)
    checked = check(
        Extraction(
            (
                FoundConcept("Otter", "", ("a",)),
                FoundConcept(" "),
                FoundConcept("OTTER", "x", ("b",)),
                FoundConcept("River"),
            ),
            (FoundInstance("Fish", "fish"),),
            (
                relation,
                FoundRelation("Otter", "River", "LIVES_IN", 0.4),
                FoundRelation("Otter", "otter", "IS_A", 1),
                FoundRelation("Otter", "Lake", "LIVES_IN", 1),
                FoundRelation("Otter", "River", " ", 1),
                FoundRelation("Otter", "River", "SEES", float("nan")),
            ),
        ),
        TEXT,
    )
    assert checked.concepts == (FoundConcept("Otter", "x", ("a", "b")), FoundConcept("River"))
    assert checked.relations == (FoundRelation("Otter", "River", "LIVES_IN", 1.0),)
    assert checked.dropped == Dropped(instances=1, relations=4, concepts=1)
    assert checked.dropped + Dropped(quotes=1) == Dropped(1, 1, 4, 1)


@settings(deadline=None)
@given(st.text(alphabet="ab \n\u00a0“", max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_every_stretch_of_a_text_is_found_in_it(text: str, start: int, end: int) -> None:
    quote = text[min(start, end) : max(start, end)]
    checked = check(instances(FoundInstance("Otter", " ".join(quote.split()))), text)
    assert len(checked.instances) == bool(quote.strip())
    for found in checked.instances:
        assert text[found.start : found.end] == found.quote
        assert found.quote.split() == quote.split()
