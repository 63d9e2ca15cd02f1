"""Three questions to the graph of the demo, and their answers with the sentences that they rest on."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from uuid import UUID

from rich.padding import Padding
from rich.text import Text

from kappa.app.api.graph_schemas import (
    ConceptDetail,
    ConceptView,
    EvidenceView,
    PathsView,
    RelationView,
    SubgraphView,
)
from kappa.app.cli import drawings, show
from kappa.app.remote import Server, segment

ABOUT = "deep sleep"
START, GOAL = "physical exercise", "memory"
CENTRE = "coffee"
FAR = 10
"""Hops, to all that is connected with it."""
PLAIN = 0.7
"""Relations that a text says outright, and not "may", "some say" or in passing."""
NOT = "NOT_"
EVIDENCE = "evidence"
"""The category of what measures or shows something, and doesn't bear on it."""

_DENIES = re.compile(r"\b(?:do|does|did|is|are)(?: not\b|n't\b)", re.IGNORECASE)
"""Enough for the plain sentences of the corpus: the graph keeps quotes with concepts, and relations by their type."""


def ask(server: Server, ontology: str) -> None:
    asking = _Asking(server, ontology)
    asking.around()
    asking.between()
    asking.disputed()


class _Asking:
    def __init__(self, server: Server, ontology: str) -> None:
        self._server = server
        self._where = {"ontologies": [ontology]}
        self._evidence: dict[UUID, list[EvidenceView]] = {}

    def around(self) -> None:
        """What bears on one concept."""
        _question(f"What bears on {ABOUT}?", f"kg related '{ABOUT}' --hops 1")
        drawn = self._subgraph(ABOUT, hops=1, min_confidence=PLAIN)
        names = {item.concept.id: item.concept for item in drawn.concepts}
        seed = next(item.concept for item in drawn.concepts if item.hop == 0)
        for relation in drawn.relations:
            if relation.to_id == seed.id and relation.category != EVIDENCE:
                self._said(names[relation.from_id], relation, seed)

    def between(self) -> None:
        """How two concepts are connected that no document speaks of together."""
        _question(f"How does {START} bear on {GOAL}?", f"kg path '{START}' {GOAL}")
        body = {"start": START, "goal": GOAL, "direction": "out", "where": {**self._where, "min_confidence": PLAIN}}
        found = self._server.post("/query/path", PathsView, body)
        for path in found.items:
            _indented(drawings.chain(path), 2)
            for before, after in zip(path.concepts, path.concepts[1:], strict=False):
                self._quote(self._shared(before, after)[:1])
            if not self._pages(path.concepts[0]) & self._pages(path.concepts[-1]):
                _indented(Text("No page speaks of both: this was put together from several."), 2)

    def disputed(self) -> None:
        """What some documents say and others deny."""
        _question(
            "Where do the pages contradict each other?",
            f"kg related {CENTRE} --hops {FAR}, and there what is both said and denied",
        )
        drawn = self._subgraph(CENTRE, hops=FAR, min_confidence=PLAIN)
        names = {item.concept.id: item.concept for item in drawn.concepts}
        types: defaultdict[tuple[UUID, UUID], set[str]] = defaultdict(set)
        for one in drawn.relations:
            types[one.from_id, one.to_id].add(one.type)
        for start, end in sorted(types, key=lambda ends: [names[one].label.casefold() for one in ends]):
            said = types[start, end]
            for kind in sorted(said):
                if NOT + kind in said:
                    self._two_sides(names[start], kind, names[end])

    def _two_sides(self, start: ConceptView, kind: str, end: ConceptView) -> None:
        _indented(Text.assemble((start.label, "bold"), f"  {kind}  ", (end.label, "bold"), "  or not?"), 2)
        quotes = self._shared(start, end)
        for word, style, denies in (("yes", "green", False), ("no", "red", True)):
            side = [quote for quote in quotes if bool(_DENIES.search(quote.quote)) == denies]
            self._quote(side[:2], Text(f"{word:<4}", style=style))

    def _said(self, start: ConceptView, relation: RelationView, end: ConceptView) -> None:
        _indented(Text.assemble((start.label, "bold"), f"  {relation.type}  ", (end.label, "bold")), 2)
        denied = relation.type.startswith(NOT)
        quotes = [one for one in self._shared(start, end) if bool(_DENIES.search(one.quote)) == denied]
        self._quote(quotes[:1])

    def _quote(self, quotes: Iterable[EvidenceView], before: Text | None = None) -> None:
        for one in quotes:
            quote = Text(f"“{' '.join(show.printable(one.quote).split())}”", style="italic")
            _indented(Text.assemble(before or "", quote, (f"  {show.printable(one.document_name)}", "dim")), 6)

    def _subgraph(self, seed: str, *, hops: int, min_confidence: float) -> SubgraphView:
        where = {**self._where, "min_confidence": min_confidence}
        body = {"seeds": [seed], "max_hops": hops, "limit": 1000, "where": where}
        return self._server.post("/query/subgraph", SubgraphView, body)

    def _shared(self, one: ConceptView, other: ConceptView) -> Sequence[EvidenceView]:
        """The sentences that speak of both, the shortest first: those say it most plainly."""
        places = {(quote.document, quote.start) for quote in self._quotes(one)}
        shared = [quote for quote in self._quotes(other) if (quote.document, quote.start) in places]
        return sorted(shared, key=lambda quote: (len(quote.quote), quote.document_name))

    def _pages(self, concept: ConceptView) -> set[UUID]:
        return {quote.document for quote in self._quotes(concept)}

    def _quotes(self, concept: ConceptView) -> list[EvidenceView]:
        if concept.id not in self._evidence:
            detail = self._server.get(f"/graph/concepts/{segment(str(concept.id))}", ConceptDetail, {"evidence": 1000})
            self._evidence[concept.id] = detail.evidence
        return self._evidence[concept.id]


def _question(text: str, command: str) -> None:
    show.out.print()
    _indented(Text.assemble((text, "bold cyan"), (f"   {command}", "dim")), 0)


def _indented(text: Text, by: int) -> None:
    show.out.print(Padding(text, (0, 0, 0, by), expand=False))
