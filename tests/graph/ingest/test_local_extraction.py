"""What the parser's reader finds, and what it must not."""

import pytest

from kappa.graph.ingest.extraction import Dropped, Extraction, check
from kappa.graph.ingest.local.blocks import blocks
from kappa.graph.ingest.local.extract import LocalExtractor
from kappa.graph.ingest.local.vocabulary import vocabulary
from tests.graph.ingest.judging import gold, judge


def labels(found: Extraction) -> set[str]:
    return {concept.label for concept in found.concepts}


def relations(found: Extraction) -> set[tuple[str, str, str]]:
    return {(one.from_label, one.type, one.to_label) for one in found.relations}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Aspirin inhibits blood clotting.", {("aspirin", "PREVENTS", "blood clotting")}),
        ("The valve is controlled by a sensor.", {("sensor", "CONTROLS", "valve")}),
        ("Smoking causes lung cancer and heart disease.",
         {("smoking", "CAUSES", "lung cancer"), ("smoking", "CAUSES", "heart disease")}),
        ("The vaccine does not cause autism.", {("vaccine", "NOT_CAUSES", "autism")}),
        ("The new drug failed to reduce mortality.", {("drug", "NOT_REDUCES", "mortality")}),
        ("The server requires no license.", {("server", "NOT_REQUIRES", "license")}),
        ("Earthquakes result from tectonic movement.", {("tectonic movement", "CAUSES", "earthquake")}),
        ("The old pump was replaced by a turbine.", {("turbine", "REPLACES", "old pump")}),
        ("If the pressure rose, the valve would release steam.", set[object]()),
        ("Does caffeine improve memory?", set[object]()),
    ],
)  # fmt: skip
def test_clauses(extractor: LocalExtractor, text: str, expected: set[tuple[str, str, str]]) -> None:
    assert relations(extractor.extract(text)) == expected


def test_how_a_text_puts_it_is_kept_and_lowers_the_confidence(extractor: LocalExtractor) -> None:
    def only(text: str) -> tuple[str, float]:
        (relation,) = extractor.extract(text).relations
        return relation.modality, relation.confidence

    assert only("Coffee prevents depression.") == ("", 0.8)
    possible, claimed = only("Coffee may prevent depression."), only("Critics claim that coffee prevents depression.")
    assert possible[0] == "possible"
    assert claimed[0] == "claimed"
    assert max(possible[1], claimed[1]) < 0.6


def test_a_verb_outside_of_the_vocabulary_says_only_that_two_are_related(extractor: LocalExtractor) -> None:
    (relation,) = extractor.extract("Bees pollinate flowers.").relations
    assert (relation.type, relation.category, relation.confidence) == ("RELATES_TO", "other", 0.35)


def test_counts_and_empty_words_are_no_concepts(extractor: LocalExtractor) -> None:
    found = extractor.extract("The number of open connections limits throughput. This approach is a good thing.")
    assert labels(found) == {"open connection", "throughput"}


def test_an_abbreviation_is_what_it_stands_for(extractor: LocalExtractor) -> None:
    found = extractor.extract("The write-ahead log (WAL) protects data. WAL requires disk space.")
    (concept,) = (one for one in found.concepts if "WAL" in one.search_terms)
    assert concept.label == "write-ahead log"
    assert ("write-ahead log", "REQUIRES", "disk space") in relations(found)


def test_labels_hold_what_stands_with_the_head_and_no_more(extractor: LocalExtractor) -> None:
    found = extractor.extract(
        "Eruptions release ash and sulfur dioxide. The overuse of antibiotics causes resistant strains."
    )
    assert {"sulfur dioxide", "overuse of antibiotic", "resistant strain"} <= labels(found)
    found = extractor.extract("Multiversion concurrency control (MVCC) gives each transaction a snapshot.")
    assert "MVCC" in {term for concept in found.concepts for term in concept.search_terms}


def test_what_a_thing_is_describes_it(extractor: LocalExtractor) -> None:
    found = extractor.extract("A lease is a time-limited claim. The lease protects a job.")
    descriptions = {concept.label: concept.description for concept in found.concepts}
    assert descriptions["lease"] == "A lease is a time-limited claim."
    assert descriptions["job"] == ""


MARKDOWN = """# The queue

The **job queue** uses [row locks](https://example.org/locks) [3]
and `leases`.

```
print("The snake eats the apple.")
```

- Workers renew the lease
- The reaper releases jobs

| part | task |
|------|------|
| leader | cron schedule |
"""


def test_evidence_stands_in_the_source_to_the_character(extractor: LocalExtractor) -> None:
    found = extractor.extract(MARKDOWN)
    checked = check(found, MARKDOWN)
    assert checked.dropped == Dropped()
    assert len(checked.instances) == len(found.instances) > 0
    quotes = {one.quote for one in checked.instances if one.label == "row lock"}
    assert quotes == {"The **job queue** uses [row locks](https://example.org/locks) [3]\nand `leases`."}
    assert ("job queue", "USES", "row lock") in relations(found)
    assert "cron schedule" in labels(found)
    assert not {"snake", "apple"} & labels(found)


def test_blocks_know_where_their_characters_stand() -> None:
    found = list(blocks(MARKDOWN))
    assert [block.text for block in found] == [
        "The queue", "The job queue uses row locks and leases.", "Workers renew the lease", "The reaper releases jobs",
        "part", "task", "leader", "cron schedule",
    ]  # fmt: skip
    for block in found:
        assert len(block.text) == len(block.at)
        assert all(block.text[i] in (" ", MARKDOWN[at]) for i, at in enumerate(block.at))


def test_odd_texts_give_nothing_and_no_error(extractor: LocalExtractor) -> None:
    for text in ("", "\n\n", "```\ncode", "🙂 🙂", "|||", "....", "a", "#", "\0", "(", "x" * 5000):
        found = extractor.extract(text)
        assert check(found, text).dropped == Dropped()


def test_the_same_text_gives_the_same_again(extractor: LocalExtractor) -> None:
    assert extractor.extract(MARKDOWN) == extractor.extract(MARKDOWN) == LocalExtractor().extract(MARKDOWN)


def test_every_type_has_a_category_and_every_word_one_type() -> None:
    words = vocabulary()
    assert {meaning.type for meaning in words.meanings.values()} <= set(words.categories)
    assert all(words.categories.values())


@pytest.mark.parametrize(
    ("held_out", "concepts", "found"), [(False, (0.95, 0.88), (0.92, 0.95)), (True, (0.88, 0.76), (0.85, 0.76))]
)
def test_it_holds_what_its_documentation_says(
    extractor: LocalExtractor, held_out: bool, concepts: tuple[float, float], found: tuple[float, float]
) -> None:
    sentences = [one for one in gold() if one.held_out == held_out]
    assert len(sentences) >= 20
    result = judge(sentences, extractor)
    for score, (precision, recall) in ((result.concepts, concepts), (result.relations, found)):
        assert score.precision >= precision, f"{score}\n" + "\n".join(result.faults)
        assert score.recall >= recall, f"{score}\n" + "\n".join(result.faults)
