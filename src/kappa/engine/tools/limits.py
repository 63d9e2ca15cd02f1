"""What a tool may use at most, as it is registered."""

from pydantic import BaseModel, ConfigDict, Field


class ToolLimits(BaseModel):
    """The limits of a tool, as they are registered."""

    model_config = ConfigDict(extra="forbid")

    cpus: float | None = Field(default=None, gt=0, le=256)
    memory_mb: int | None = Field(default=None, ge=16, le=1024 * 1024)
    pids: int | None = Field(default=None, ge=4, le=32768)
    tmp_mb: int | None = Field(default=None, ge=1, le=1024 * 1024)
    output_mb: int | None = Field(default=None, ge=1, le=1024 * 1024)
