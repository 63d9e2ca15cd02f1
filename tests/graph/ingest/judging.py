"""The labelled sets beside this file, and how well something does on them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kappa.graph.identity import normal
from kappa.graph.ingest.extraction import Extraction
from kappa.graph.ingest.local.extract import LocalExtractor

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Pair:
    """Two labels, and whether they name one thing."""

    one: str
    other: str
    same: bool
    kind: str


def pairs(name: str) -> list[Pair]:
    rows = [line.split("\t") for line in (HERE / name).read_text().splitlines() if line and not line.startswith("#")]
    return [Pair(one, other, verdict == "same", kind) for one, other, verdict, kind in rows]


@dataclass(slots=True)
class Sentence:
    """A text, and what a person reads in it; each alternative of a label or type fits."""

    text: str
    held_out: bool
    concepts: list[frozenset[str]] = field(default_factory=list[frozenset[str]])
    relations: list[tuple[frozenset[str], frozenset[str], frozenset[str]]] = field(
        default_factory=list[tuple[frozenset[str], frozenset[str], frozenset[str]]]
    )


def gold() -> list[Sentence]:
    sentences: list[Sentence] = []
    held_out = False
    for line in (HERE / "gold.txt").read_text().splitlines():
        if line == "held out":
            held_out = True
        elif line.startswith("+ "):
            sentences[-1].concepts.extend(_either(part) for part in line[2:].split(";"))
        elif line.startswith("= "):
            start, kind, end = (_either(part) for part in line[2:].split("|"))
            sentences[-1].relations.append((start, kind, end))
        elif line and not line.startswith("#"):
            sentences.append(Sentence(line, held_out))
    return sentences


def _either(text: str) -> frozenset[str]:
    return frozenset(normal(part) for part in text.split("/"))


@dataclass(slots=True)
class Score:
    """How many were given, and right; how many were wanted, and met. One that was wanted may be met twice."""

    wanted: int = 0
    given: int = 0
    right: int = 0
    met: int = 0

    @property
    def precision(self) -> float:
        return self.right / self.given if self.given else 1.0

    @property
    def recall(self) -> float:
        return self.met / self.wanted if self.wanted else 1.0

    def __str__(self) -> str:
        return f"precision {self.precision:.2f}, recall {self.recall:.2f} ({self.wanted} wanted, {self.given} given)"


@dataclass(slots=True)
class Judgement:
    """Concepts, and relations with their type and without it."""

    concepts: Score = field(default_factory=Score)
    relations: Score = field(default_factory=Score)
    ends: Score = field(default_factory=Score)
    by_confidence: dict[str, Score] = field(default_factory=dict[str, Score])
    faults: list[str] = field(default_factory=list[str])


def judge(sentences: Iterable[Sentence], extractor: LocalExtractor) -> Judgement:
    judgement = Judgement()
    for sentence in sentences:
        _judge(sentence, extractor.extract(sentence.text), judgement)
    return judgement


def _judge(sentence: Sentence, found: Extraction, judgement: Judgement) -> None:
    labels = {normal(concept.label) for concept in found.concepts}
    missing = [one for one in sentence.concepts if not one & labels]
    extra = labels - frozenset[str]().union(*sentence.concepts)
    judgement.concepts.wanted += len(sentence.concepts)
    judgement.concepts.given += len(labels)
    judgement.concepts.right += len(labels) - len(extra)
    judgement.concepts.met += len(sentence.concepts) - len(missing)
    given = {(normal(one.from_label), normal(one.type), normal(one.to_label)): one for one in found.relations}
    judgement.relations.wanted += len(sentence.relations)
    judgement.relations.given += len(given)
    judgement.ends.wanted += len(sentence.relations)
    judgement.ends.given += len(given)
    wrong: list[str] = []
    for (start, kind, end), relation in given.items():
        fits = any(start in a and kind in b and end in c for a, b, c in sentence.relations)
        judgement.relations.right += fits
        judgement.ends.right += any(start in a and end in c for a, _, c in sentence.relations)
        band = "≥ 0.7" if relation.confidence >= 0.7 else "0.5 – 0.7" if relation.confidence >= 0.5 else "< 0.5"
        score = judgement.by_confidence.setdefault(band, Score())
        score.given += 1
        score.right += fits
        if not fits:
            wrong.append(f"{start} {kind} {end}")
    lost = [
        (a, b, c)
        for a, b, c in sentence.relations
        if not any(start in a and kind in b and end in c for start, kind, end in given)
    ]
    judgement.relations.met += len(sentence.relations) - len(lost)
    judgement.ends.met += sum(any(start in a and end in c for start, _, end in given) for a, _, c in sentence.relations)
    if missing or extra or wrong or lost:
        judgement.faults.append(
            f"{sentence.text}\n    missing {[sorted(one)[0] for one in missing]} extra {sorted(extra)}"
            f"\n    wrong {wrong} lost {[' '.join(sorted(part)[0] for part in one) for one in lost]}"
        )
