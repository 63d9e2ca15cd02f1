"""How large a pool may be: a word of the vocabulary, which settings and commands use without the driver."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many connections a pool keeps and may open, and how long a caller waits for one."""

    min_size: int
    max_size: int
    wait: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_size <= self.max_size or self.max_size < 1:
            raise ValueError(f"a pool of {self.min_size} to {self.max_size} connections is impossible")
        if self.wait <= 0:
            raise ValueError(f"a pool's wait must be more than 0 s, not {self.wait:g}")
