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
        connection.execute(
            "INSERT INTO kappa_graph.undo_rows (proposal_id, what, content) "
            "SELECT id, 'gone concepts', %s FROM kappa_graph.proposals",
            [json.dumps({"id": 7, "label": "tab\t \\N é"})],
        )
        connection.execute("INSERT INTO kappa_graph.seed_types VALUES ('CAUSES', 'm', '{0.5,-0.25}')")
        connection.execute(
            "INSERT INTO kappa_graph.type_measures "
            "(type_id, stance, model, scores, best, epistemic, grounding, sampled) "
            "SELECT id, 0.75, 'm', %s, 'causal', 'mixed', -0.125, 3 "
            "FROM kappa_graph.relation_types WHERE name = 'EATS'",
            [json.dumps({"causal": 0.5})],
        )
        connection.execute(
            "INSERT INTO kappa_graph.type_merges (merged, survivor, similarity, made_by, moved, followers) "
            "SELECT id, merged_into, 0.875, 'ada', '{11,12}', '{}' "
            "FROM kappa_graph.relation_types WHERE name = 'NOURISHES'"
        )
        connection.execute(
            "INSERT INTO kappa_graph.merged_relations "
            "SELECT m.id, 999, r.id, r.from_id, r.to_id, 40, 'c', 'p', '2026-01-01', '{1}', '{}', 50 "
            "FROM kappa_graph.type_merges AS m JOIN kappa_graph.relations AS r ON r.type_id = m.survivor"
        )
        connection.execute(
            "INSERT INTO kappa_graph.chunk_plan "
            "(document_id, ordinal, start_offset, end_offset, words, state, run, error, finished_at) "
            "SELECT id, 0, 0, 5, 1, 'failed', 'job 1', 'no JSON', now() FROM kappa_graph.documents"
        )
