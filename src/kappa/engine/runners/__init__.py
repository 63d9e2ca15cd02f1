"""Ways to run work outside of the worker's own threads and loop."""
