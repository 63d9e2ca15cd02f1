"""The knowledge graph: concepts, evidence, relations and questions about them. Knows nothing of jobs."""
