"""A graph: write a few concepts and relations, and ask what is around them.

    python examples/graph.py            # uses an embedded PostgreSQL in ./.kappa-example

Prints what lives around the otter, two paths from the gull to the river, and what the answer saw of a relation that was
written a moment before. Run it again: nothing is written twice.
"""

from pathlib import Path

from kappa.graph import Chunk, Graph, NewConcept, NewDocument, NewInstance, NewLink, NewRelation, Order
from kappa.pg.embedded import EmbeddedServer

TEXT = "Otters live in rivers. They eat salmon. Salmon live in rivers and in the sea. Gulls eat salmon."


def main() -> None:
    with EmbeddedServer(Path(".kappa-example"), say=print).hold("graph") as url:
        graph = Graph(url)
        graph.install()  # the schema; safe to call at every start
        with graph:
            document, _ = graph.add_document("zoology", NewDocument("animals.txt", TEXT))
            chunk = Chunk(
                document,
                ordinal=0,
                start=0,
                end=len(TEXT),
                concepts=[NewConcept(label) for label in ("Otter", "River", "Salmon", "Sea", "Gull")],
                instances=[NewInstance("Otter", "Otters", 0), NewInstance("Salmon", "salmon", TEXT.index("salmon"))],
                relations=[
                    NewLink("Otter", "River", "LIVES_IN", 0.9),
                    NewLink("Otter", "Salmon", "EATS", 0.8),
                    NewLink("Salmon", "River", "LIVES_IN", 0.9),
                    NewLink("Salmon", "Sea", "LIVES_IN", 0.9),
                    NewLink("Gull", "Salmon", "EATS", 0.7),
                ],
            )
            written = graph.write_chunk(chunk)  # whole or not at all
            ids = written.ids
            answer = graph.neighbors([ids["Otter"]], max_hops=2, order=Order.HOP, min_epoch=written.epoch)
            for one in answer.items:
                print(f"{one.hop} hop{'s' * (one.hop > 1)}: {one.concept.label} (degree {one.degree})")
            for path in graph.paths(ids["Gull"], ids["River"], count=2).items:
                print("path: " + " – ".join(concept.label for concept in path.concepts))
            print(f"quote: {graph.evidence(ids['Otter'])[0].quote}")

            written = graph.add_relations([NewRelation(ids["River"], ids["Sea"], "FLOWS_INTO")])
            near = graph.neighbors([ids["River"]], direction="out", min_epoch=written.epoch)
            print(f"the river flows into: {near.items[0].concept.label}")
            assert near.as_of_epoch >= written.epoch


if __name__ == "__main__":
    main()
