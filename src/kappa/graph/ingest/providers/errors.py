"""What a provider's call can end with, beside an answer.

GraphError
├── ProviderDown      nobody answers, or too many ask; says when to ask again (extraction.py)
├── BadExtraction     of no use for this text: cut off, no JSON, not of the schema, refused (extraction.py)
├── ProviderRefused   a key, a model or a setting that is wrong: somebody has to change something
└── CallStopped       whoever asked no longer wants to know
"""

from kappa.graph.errors import GraphError


class ProviderRefused(GraphError):
    """The provider does not take the key or the model, or a setting of it makes no sense."""


class CallStopped(GraphError):
    """The call was given up for whoever asked."""
