"""The web pages: rendered on the server, thin over the use cases, nothing from outside."""
