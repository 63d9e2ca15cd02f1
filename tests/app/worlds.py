"""A small graph that is written over HTTP, and names of what is in it."""

from typing import Any

import httpx2

from tests.app.conftest import Site
from tests.app.patience import becomes

ANIMALS = (
    ("Otter", "LIVES_IN", "River"), ("Otter", "EATS", "Fish"), ("Heron", "EATS", "Fish"), ("Fish", "LIVES_IN", "River"),
    ("River", "FLOWS_INTO", "Sea"), ("Whale", "LIVES_IN", "Sea"), ("Whale", "EATS", "Krill"),
)  # fmt: skip


WATERS = {
    "River": (1.0, 0.0), "Sea": (-1.0, 0.0), "Otter": (0.8, 0.2), "Fish": (0.1, 0.5), "Whale": (-0.9, 0.1),
    "Krill": (-0.6, 0.6),
}  # fmt: skip
"""Embeddings: from fresh water, at 1, to salt water, at -1. The heron has none."""
QUESTIONS: dict[str, dict[str, Any]] = {
    "neighbors": {"seeds": ["Otter"], "max_hops": 2},
    "related": {"concept": "Otter"},
    "path": {"start": "Otter", "goal": "Whale"},
    "enriched-path": {"start": "Otter", "goal": "Whale"},
    "polarity": {"positive": "River", "negative": "Sea"},
    "subgraph": {"seeds": ["Otter"]},
    "search": {"text": "playful"},
    "diversity": {"concept": "Otter"},
}
"""One of each."""


def concepts() -> dict[str, Any]:
    labels = dict.fromkeys(label for edge in ANIMALS for label in (edge[0], edge[2]))
    described = {"Otter": {"description": "a playful swimmer", "search_terms": ["Lutra", "sea dog"]}}
    made = [{"label": label, "embedding": WATERS.get(label), **described.get(label, {})} for label in labels]
    return {"ontology": "zoology", "concepts": made, "embedding_model": "waters"}


def relations() -> dict[str, Any]:
    made = [{"from": head, "to": tail, "type": kind, "confidence": 0.9} for head, kind, tail in ANIMALS]
    return {"ontology": "zoology", "relations": made}


async def populate(client: httpx2.AsyncClient) -> tuple[dict[str, str], int]:
    """The ids of the animals by label, and the epoch that has all of them."""
    made = (await client.post("/graph/concepts", json=concepts())).raise_for_status().json()
    linked = (await client.post("/graph/relations", json=relations())).raise_for_status().json()
    return made["ids"], linked["epoch"]


async def in_memory(site: Site, epoch: int) -> None:
    """Until the snapshot has that epoch: who asks without one is answered out of what is there."""

    def seen() -> bool:
        now = site.services.graph.now()
        return now is not None and (now.snapshot.epoch or 0) >= epoch

    await becomes(seen, what="the snapshot has it")
