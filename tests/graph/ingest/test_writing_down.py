"""What the local provider finds goes into the graph as it is."""

from kappa.graph import Chunk, Graph, NewConcept, NewDocument, NewInstance, NewLink
from kappa.graph.ingest.extraction import check
from kappa.graph.ingest.local.extract import LocalExtractor

TEXT = "# Blood\n\nAspirin **inhibits** blood clotting. It does not cure diabetes.\n\nBlood clotting requires calcium."


def test_an_extraction_is_a_chunk(graph: Graph, extractor: LocalExtractor) -> None:
    found = check(extractor.extract(TEXT), TEXT)
    document, _ = graph.add_document("medicine", NewDocument("blood.md", TEXT))
    written = graph.write_chunk(
        Chunk(
            document,
            ordinal=0,
            start=0,
            end=len(TEXT),
            concepts=[NewConcept(one.label, one.description, one.search_terms) for one in found.concepts],
            instances=[NewInstance(one.label, one.quote, one.start) for one in found.instances],
            relations=[
                NewLink(one.from_label, one.to_label, one.type, one.confidence, one.category) for one in found.relations
            ],
        )
    )
    assert written.relations == len(found.relations) >= 3
    graph.refresh()
    (step,) = graph.paths(written.ids["aspirin"], written.ids["calcium"]).items
    assert [concept.label for concept in step.concepts] == ["aspirin", "blood clotting", "calcium"]
    assert "Aspirin **inhibits** blood clotting." in {one.quote for one in graph.evidence(written.ids["aspirin"])}
