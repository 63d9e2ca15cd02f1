"""A small graph with a text behind it, for people to look at."""

from math import cos, pi, sin

from kappa.graph import Chunk, Graph, NewConcept, NewDocument, NewInstance, NewLink

TEXT = """The life of a river

Otters live in rivers and along their banks. An otter eats fish, and where fish are few it takes crayfish as well. \
Otters need clean water: pollution reduces the number of fish, and with them the otters vanish.

Herons eat fish too. A heron stands in shallow water for hours. Fish live in rivers, and they need oxygen, which cold \
water holds better than warm water does.

A river flows into the sea. The salmon lives in both: it is born in the river, grows up in the sea, and comes back to \
spawn. Dams prevent salmon from coming back. Fish ladders help salmon past dams.

Whales live in the sea and eat krill. Seals eat salmon and live on the coast. Krill eats algae, and algae need light.

Wetlands clean the water of rivers. Beavers build dams of wood, which make wetlands. Reeds grow in wetlands, and \
herons nest among reeds. Farms bring nitrate into rivers; nitrate feeds algae, and too many algae \
take the oxygen away."""

LINKS = (
    ("Otter", "LIVES_IN", "River"), ("Otter", "EATS", "Fish"), ("Otter", "EATS", "Crayfish"),
    ("Otter", "REQUIRES", "Clean water"), ("Pollution", "REDUCES", "Fish"), ("Heron", "EATS", "Fish"),
    ("Fish", "LIVES_IN", "River"), ("Fish", "REQUIRES", "Oxygen"), ("River", "FLOWS_INTO", "Sea"),
    ("Salmon", "LIVES_IN", "River"), ("Salmon", "LIVES_IN", "Sea"), ("Dam", "PREVENTS", "Salmon"),
    ("Fish ladder", "SUPPORTS", "Salmon"), ("Whale", "LIVES_IN", "Sea"), ("Whale", "EATS", "Krill"),
    ("Seal", "EATS", "Salmon"), ("Seal", "LIVES_IN", "Coast"), ("Krill", "EATS", "Algae"),
    ("Algae", "REQUIRES", "Light"), ("Wetland", "PRODUCES", "Clean water"), ("Beaver", "PRODUCES", "Wetland"),
    ("Beaver", "PRODUCES", "Dam"), ("Reed", "LIVES_IN", "Wetland"), ("Heron", "LIVES_IN", "Reed"),
    ("Farm", "PRODUCES", "Nitrate"), ("Nitrate", "CAUSES", "Algae"), ("Algae", "REDUCES", "Oxygen"),
    ("Salmon", "IS_A", "Fish"), ("Coast", "PART_OF", "Sea"), ("Nitrate", "IS_A", "Pollution"),
)  # fmt: skip
QUOTES = {
    "Otter": ("Otters live in rivers", "An otter eats fish"), "Salmon": ("The salmon lives in both",),
    "Whale": ("Whales live in the sea",), "River": ("A river flows into the sea",), "Fish": ("Fish live in rivers",),
}  # fmt: skip
SALT = {
    "Sea": -1.0, "Whale": -0.9, "Krill": -0.8, "Seal": -0.55, "Coast": -0.4, "Algae": -0.05, "Salmon": 0.1, "Fish": 0.2,
    "Otter": 0.7, "Heron": 0.6, "Beaver": 0.8, "Wetland": 0.75, "River": 1.0,
}  # fmt: skip
"""How fresh the water is, as embeddings have it."""


def pour(url: str) -> dict[str, str]:
    """The ids of the concepts by label."""
    labels = list(dict.fromkeys(label for head, _, tail in LINKS for label in (head, tail)))
    described = {"Otter": "a playful swimmer with a thick coat", "Salmon": "a fish that is at home in two waters"}
    instances = [
        NewInstance(label, quote, TEXT.index(quote)) for label, quotes in QUOTES.items() for quote in quotes
    ]  # fmt: skip
    with Graph(url) as graph:
        ontology = graph.ontology("rivers", "What lives in a river, and what it needs")
        document, _ = graph.add_document(ontology.name, NewDocument("the-life-of-a-river.txt", TEXT))
        written = graph.write_chunk(
            Chunk(
                document, 0, 0, len(TEXT), [NewConcept(label, described.get(label, "")) for label in labels], instances,
                [NewLink(head, tail, kind, 0.9) for head, kind, tail in LINKS],
            )
        )  # fmt: skip
        vectors = {
            written.ids[label]: (cos(pi * (1 - place) / 2), sin(pi * (1 - place) / 2)) for label, place in SALT.items()
        }
        graph.set_embeddings("waters", vectors)
        return {label: str(made) for label, made in written.ids.items()}
