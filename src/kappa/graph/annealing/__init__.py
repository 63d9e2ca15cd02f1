"""Ontologies kept in order: how good they are, what should become of them, and its doing and undoing."""
