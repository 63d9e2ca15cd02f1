"""The HTTP API: thin over the use cases, the same for scripts, pages and agents."""
