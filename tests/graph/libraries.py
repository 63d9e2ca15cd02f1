"""A small library to keep: two ontologies with documents, evidence, relations, embeddings, artifacts and a proposal."""

import json

import psycopg

from kappa.graph import Chunk, Graph, NewConcept, NewDocument, NewInstance, NewLink

OTTERS = "Otters live in rivers. A river feeds the sea. Otters eat fish, and fish need clean water."
WHALES = "Whales live in the sea. Whales eat krill. Krill eat algae that need light."


def write_document(graph: Graph, ontology: str, name: str, text: str, links: list[tuple[str, str, str]]) -> None:
    """A document of one chunk; each end of a link is a word of its text, in any case."""
    key, _ = graph.add_document(ontology, NewDocument(name, text, original=text.encode() + b"\n\x00\xff original"))
    words = list(dict.fromkeys(word for start, _, goal in links for word in (start, goal)))
    places = [(word, text.lower().index(word.lower())) for word in words]
    graph.write_chunk(
        Chunk(
            key, 0, 0, len(text),
            [NewConcept(word.title(), f"{word}, says {name}\t\\N\n", [word.lower(), f"{word}s"]) for word in words],
            [NewInstance(word.title(), text[at : at + len(word)], at) for word, at in places],
            [NewLink(start.title(), goal.title(), kind, 0.5 + len(goal) / 40) for start, kind, goal in links],
        )
    )  # fmt: skip


def write_library(graph: Graph, *, whales: bool = True) -> None:
    write_document(
        graph, "rivers", "otters.txt", OTTERS,
        [("otters", "LIVES_IN", "rivers"), ("river", "FEEDS", "sea"), ("otters", "EATS", "fish"),
         ("fish", "NEEDS", "water")],
    )  # fmt: skip
    if whales:
        write_document(
            graph, "seas", "whales.txt", WHALES,
            [("whales", "LIVES_IN", "sea"), ("whales", "EATS", "krill"), ("krill", "EATS", "algae"),
             ("algae", "NEEDS", "light")],
        )  # fmt: skip
    embedded = [("rivers", "Otters"), ("rivers", "Fish")] + whales * [("seas", "Whales"), ("seas", "Krill")]
    found = [graph.concept_by_label(label, ontology)[0].id for ontology, label in embedded]
    graph.set_embeddings("test-3", {key: [1.0, 0.1 * at, -0.3333333] for at, key in enumerate(found)})


def write_beside(url: str) -> None:
    """What the graph's own calls don't write yet."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE kappa_graph.sources SET embedding = '{0.25,-1}', embedding_model = 'm', embedded_hash = '\\x01'"
        )
        connection.execute(
            "INSERT INTO kappa_graph.relation_types (name, active, merged_into) "
            "SELECT 'NOURISHES', false, id FROM kappa_graph.relation_types WHERE name = 'FEEDS'"
        )
        connection.execute(
            "INSERT INTO kappa_graph.artifacts (key, kind, name, ontology_id, as_of_epoch, content, bytes, media_type) "
            "SELECT gen_random_uuid(), 'projection', 'map', id, 3, %s, '\\x00ff', 'image/svg+xml' "
            "FROM kappa_graph.ontologies",
            [json.dumps({"points": [1, 2.5, None]})],
        )
        connection.execute(
            "INSERT INTO kappa_graph.proposals (key, kind, ontology_id, body, as_of_epoch) "
            "SELECT gen_random_uuid(), 'dissolve', id, '{}', 1 FROM kappa_graph.ontologies LIMIT 1"
        )
