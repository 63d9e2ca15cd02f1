"""Why a document can't be read, each in one line.

GraphError
└── ReadError                the document can't be read
    ├── UnknownFormat        no format that is read here
    ├── BrokenDocument       of a known format, but damaged
    ├── EncryptedDocument    it needs a password or a key
    ├── EmptyDocument        there is no text in it
    └── DocumentTooLarge     over one of the limits

A format whose library is not installed is a `MissingExtra`, and where there is no process to read in, that is a
`ReaderUnavailable`: neither says anything of the document.
"""

from kappa.graph.errors import GraphError


class ReadError(GraphError):
    """A document that can't be read."""


class ReaderUnavailable(GraphError):
    """There is no process to read documents in, for now."""


class UnknownFormat(ReadError):
    """No format that is read here."""


class BrokenDocument(ReadError):
    """A document of a known format that is damaged."""


class EncryptedDocument(ReadError):
    """A document that needs a password or a key."""


class EmptyDocument(ReadError):
    """A document without any text."""


class DocumentTooLarge(ReadError):
    """A document over one of the limits."""
