"""The graph's tables, as a component of the database's migrations."""

from pathlib import Path

from kappa.pg import component

COMPONENT = component("graph", Path(__file__).parent / "migrations")
CHANNEL = "kappa_graph"
"""Where every commit that changes the graph says its epoch."""
