"""What the graph refuses, and why.

KappaError
└── GraphError
    ├── UnknownConcept        a seed or an end of a path that is not in the graph
    ├── UnknownOntology
    ├── UnknownRelationType   a filter names a type that the vocabulary doesn't have
    ├── BadQuestion           a question outside of its documented bounds
    ├── BadWrite              what was to be written contradicts itself; nothing was written
    ├── BadBackup             a file that is no whole backup, or one that can't be restored here; nothing was changed
    ├── BadProposal           a proposal that can't be carried out, or undone; nothing was changed
    ├── ForeignGraph          what needs Kappa's own tables was asked of a graph that somebody else keeps
    ├── EpochNotReached       the graph did not come to the epoch that was asked for in time
    ├── QuestionStopped       the deadline passed, or the caller cancelled, before there was anything to answer
    ├── GraphBusy             no worker became free before the deadline
    ├── GraphFailed           every worker of a question failed; the first failure is its cause
    └── MissingExtra          a part of Kappa that was not installed
        └── WrongWeights      a model whose files are not those that Kappa was tested with
"""

from kappa.pg import KappaError


class GraphError(KappaError):
    """Something that the graph refuses."""


class UnknownConcept(GraphError):
    """A concept that is not in the graph."""


class UnknownOntology(GraphError):
    """An ontology that is not in the graph."""


class UnknownRelationType(GraphError):
    """A relation type that the vocabulary doesn't have."""


class BadQuestion(GraphError):
    """A question outside of its documented bounds."""


class BadWrite(GraphError):
    """What was to be written contradicts itself."""


class BadBackup(GraphError):
    """A file that is no whole backup, or one that can't be restored here."""


class BadProposal(GraphError):
    """A proposal that can't be carried out, or undone."""


class ForeignGraph(GraphError):
    """What needs Kappa's own tables was asked of a graph that somebody else keeps."""


class EpochNotReached(GraphError):
    """The graph did not come to the epoch that was asked for in time."""


class QuestionStopped(GraphError):
    """The deadline passed, or the caller cancelled, before there was anything to answer."""


class GraphBusy(GraphError):
    """No worker became free before the deadline."""


class GraphFailed(GraphError):
    """Every worker of a question failed."""


class MissingExtra(GraphError):
    """A part of Kappa that was not installed; the message names the extra."""


class WrongWeights(MissingExtra):
    """A model whose files are not those that Kappa was tested with. It is not loaded."""
