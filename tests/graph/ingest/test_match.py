"""When two labels, or two relation types, are one."""

from collections.abc import Callable

import pytest

from kappa.graph.ingest.embedding import PROVIDER, Thresholds
from kappa.graph.ingest.local.embed import LocalEmbedder
from kappa.graph.ingest.match import Candidate, Decision, decide, decide_type, stem, told_apart, type_text
from tests.graph.ingest.judging import Pair, Score, pairs


def verdict(label: str, *candidates: tuple[str, float]) -> tuple[str | None, str]:
    decision = decide(label, [Candidate(name, name, likeness) for name, likeness in candidates], PROVIDER)
    return decision.same.key if decision.same else None, decision.why


def test_the_nearest_that_is_near_enough_is_the_same() -> None:
    assert verdict("car", ("automobile", 0.9), ("motor car", 0.86)) == ("automobile", "similar")
    assert verdict("car", ("automobile", 0.84)) == (None, "new")
    assert verdict("car") == (None, "new")


def test_an_equal_label_needs_no_likeness() -> None:
    assert verdict("Otter", ("river", 0.99), ("  OTTER ", -1.0)) == ("  OTTER ", "label")


def test_less_is_enough_where_one_label_contains_the_other() -> None:
    assert verdict("central bank", ("national central bank", 0.75)) == ("national central bank", "contains")
    assert verdict("Redis", ("Redis server", 0.76)) == ("Redis server", "contains")
    assert verdict("central bank", ("national central bank", 0.74)) == (None, "new")


def test_a_common_noun_is_not_what_is_named_after_it() -> None:
    assert verdict("virus", ("computer virus", 0.95)) == (None, "new")
    assert verdict("lease", ("lease token", 0.95)) == (None, "new")


def test_equal_stems_need_less_likeness() -> None:
    assert verdict("leases", ("lease", 0.75)) == ("lease", "stem")
    assert verdict("the unit test", ("unit testing", 0.75)) == ("unit testing", "stem")


def test_a_candidate_that_is_told_apart_leaves_the_place_to_the_next() -> None:
    assert verdict("type 2 diabetes", ("type 1 diabetes", 0.99), ("diabetes type 2", 0.9))[0] == "diabetes type 2"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("type 1 diabetes", "type 2 diabetes"), ("Python", "Python 3"), ("World War I", "World War II"),
        ("left ventricle", "right ventricles"), ("supervised learning", "unsupervised learning"),
        ("linear model", "nonlinear model"), ("smoking", "not smoking"), ("increases", "decreased"),
    ],
)  # fmt: skip
def test_words_tell_labels_apart(one: str, other: str) -> None:
    assert told_apart(one, other)
    assert told_apart(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [("World War II", "Second World War"), ("CO2", "carbon dioxide"), ("car", "automobile"), ("read", "reads")],
)
def test_words_that_tell_nothing_apart(one: str, other: str) -> None:
    assert not told_apart(one, other)


def test_stems() -> None:
    for forms in (
        "cause causes caused causing", "use uses used using", "lease leases", "study studies studied",
        "replicate replication replicating replicates", "queue queues queueing queuing", "stop stops stopped stopping",
        "optimize optimise optimization optimisation", "increase increases increased increasing",
    ):  # fmt: skip
        assert len({stem(form) for form in forms.split()}) == 1, forms
    assert stem("worker") != stem("work")


def test_types_are_matched_by_name_then_stem_then_likeness() -> None:
    def match(name: str, *known: tuple[str, float]) -> tuple[str | None, str]:
        decision = decide_type(name, [Candidate(one, one, likeness) for one, likeness in known], PROVIDER)
        return decision.same.key if decision.same else None, decision.why

    assert match("part of", ("CONTAINS", 0.9), ("PART_OF", 0.1)) == ("PART_OF", "label")
    assert match("CAUSED", ("LEADS_TO", 0.95), ("CAUSES", 0.1)) == ("CAUSES", "stem")
    assert match("NEEDS", ("REQUIRES", 0.86)) == ("REQUIRES", "similar")
    assert match("NEEDS", ("REQUIRES", 0.84)) == (None, "new")
    assert match("CAUSED_BY", ("CAUSES", 0.99)) == (None, "new")
    assert match("NOT_CAUSES", ("CAUSES", 0.99)) == (None, "new")
    assert match("DOES_NOT_CAUSE", ("CAUSES", 0.99), ("NOT_CAUSES", 0.9)) == ("NOT_CAUSES", "similar")
    assert type_text("PART_OF") == "part of"


Decide = Callable[[str, list[Candidate[int]], Thresholds], Decision[int]]


def score(some: list[Pair], embedder: LocalEmbedder, decider: Decide) -> Score:
    written = (lambda label: label) if decider is decide else type_text
    ones = embedder.embed([written(pair.one) for pair in some])
    others = embedder.embed([written(pair.other) for pair in some])
    result = Score()
    for pair, likeness in zip(some, (ones * others).sum(axis=1).tolist(), strict=True):
        same = decider(pair.one, [Candidate(0, pair.other, likeness)], embedder.thresholds).same is not None
        result.wanted += pair.same
        result.given += same
        result.right += same and pair.same
        result.met += same and pair.same
    return result


def test_the_local_model_holds_what_its_documentation_says_of_labels(embedder: LocalEmbedder) -> None:
    labelled = pairs("labels.tsv")
    assert len(labelled) >= 100
    result = score(labelled, embedder, decide)
    assert result.precision >= 0.97, str(result)
    assert result.recall >= 0.80, str(result)


def test_the_local_model_holds_what_its_documentation_says_of_types(embedder: LocalEmbedder) -> None:
    result = score(pairs("types.tsv"), embedder, decide_type)
    assert result.precision >= 0.97, str(result)
    assert result.recall >= 0.60, str(result)
