"""Whoever asks for something, and what they may."""

from dataclasses import dataclass

from kappa.app.errors import Forbidden
from kappa.app.permissions import Permission


@dataclass(frozen=True, slots=True)
class Principal:
    """A user who was recognised, with what this token or session lets them do."""

    user_id: int
    name: str
    permissions: frozenset[str]
    token_id: int | None = None
    request_id: str | None = None

    def may(self, permission: Permission) -> bool:
        return permission in self.permissions

    def require(self, permission: Permission) -> None:
        if not self.may(permission):
            raise Forbidden(f"{self.name} lacks the permission {permission}")

    def require_all(self, permissions: frozenset[str], what: str) -> None:
        """Nobody can give, or take over, what they don't have."""
        if beyond := sorted(permissions - self.permissions):
            raise Forbidden(f"{what} goes beyond what {self.name} may do: {', '.join(beyond)}")
