"""What the application refuses, and why.

KappaError
└── AppError
    ├── NotAuthenticated   no token or session, or one that doesn't count
    ├── Forbidden          known, but not allowed to
    ├── Throttled          too many tries; says when the next one is listened to
    ├── QuotaExceeded      more than one person may have kept
    ├── NotFound
    │   └── NotTheirs      it belongs to somebody else, which is not said
    ├── Conflict           it is there already, or something needs it
    │   └── Ambiguous      a name that several things have
    ├── Refused            the request makes no sense as it is
    ├── NotInstalled       a part of Kappa that this installation lacks
    └── Draining           the server is about to stop and takes nothing new
"""

from kappa.pg import KappaError


class AppError(KappaError):
    """Everything that the application refuses."""


class NotAuthenticated(AppError):
    """No token or session, or one that doesn't count."""


class Forbidden(AppError):
    """Known, but not allowed to."""


class Throttled(AppError):
    """Too many tries."""

    def __init__(self, text: str, retry_after: float) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class QuotaExceeded(AppError):
    """More than one person may have kept."""


class NotFound(AppError):
    """There is no such thing."""


class NotTheirs(NotFound):
    """It belongs to somebody else; whoever asks is told that there is no such thing."""


class Conflict(AppError):
    """It is there already, or something needs it."""


class Ambiguous(Conflict):
    """A name that several things have."""


class Refused(AppError):
    """The request makes no sense as it is."""


class NotInstalled(AppError):
    """A part of Kappa that this installation lacks."""


class Draining(AppError):
    """The server is about to stop."""
