"""A small graph that is written over HTTP, and names of what is in it."""

from typing import Any

import httpx2

ANIMALS = (
    ("Otter", "LIVES_IN", "River"), ("Otter", "EATS", "Fish"), ("Heron", "EATS", "Fish"), ("Fish", "LIVES_IN", "River"),
    ("River", "FLOWS_INTO", "Sea"), ("Whale", "LIVES_IN", "Sea"), ("Whale", "EATS", "Krill"),
)  # fmt: skip


def concepts() -> dict[str, Any]:
    labels = dict.fromkeys(label for edge in ANIMALS for label in (edge[0], edge[2]))
    described = {"Otter": {"description": "a playful swimmer", "search_terms": ["Lutra", "sea dog"]}}
    return {"ontology": "zoology", "concepts": [{"label": label, **described.get(label, {})} for label in labels]}


def relations() -> dict[str, Any]:
    made = [{"from": head, "to": tail, "type": kind, "confidence": 0.9} for head, kind, tail in ANIMALS]
    return {"ontology": "zoology", "relations": made}


async def populate(client: httpx2.AsyncClient) -> tuple[dict[str, str], int]:
    """The ids of the animals by label, and the epoch that has all of them."""
    made = (await client.post("/graph/concepts", json=concepts())).raise_for_status().json()
    linked = (await client.post("/graph/relations", json=relations())).raise_for_status().json()
    return made["ids"], linked["epoch"]
