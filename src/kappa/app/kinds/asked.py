"""What a job of one of Kappa's own kinds may be asked."""

from pydantic import BaseModel, ConfigDict


class Asked(BaseModel):
    """A payload. A field that it doesn't have was mistyped, and to leave it out would be another job than was meant."""

    model_config = ConfigDict(extra="forbid")
