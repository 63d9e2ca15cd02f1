"""Counts that are remembered while it pays."""

from kappa.app.usecases.counted import MANY, TIMES, Counted


class Counting:
    """Counts, and what time it is; each count takes a second."""

    def __init__(self, mass: int) -> None:
        self.time = 0.0
        self.times = 0
        self.counted = Counted(self.count, lambda _: mass, lambda: self.time)

    async def count(self) -> int:
        self.time += 1
        self.times += 1
        return self.times


async def test_little_is_counted_each_time() -> None:
    few = Counting(MANY)
    assert [await few.counted.get(), await few.counted.get()] == [1, 2]


async def test_much_is_counted_a_small_share_of_the_time() -> None:
    many = Counting(MANY + 1)
    assert [await many.counted.get(), await many.counted.get()] == [1, 1]
    many.time = TIMES - 0.5
    assert await many.counted.get() == 1
    many.time = TIMES + 0.5
    assert await many.counted.get() == 2


async def test_what_does_not_fit_or_is_forgotten_is_counted_anew() -> None:
    many = Counting(MANY + 1)
    assert await many.counted.get() == 1
    assert await many.counted.get(lambda known: known != 1) == 2
    many.counted.forget()
    assert await many.counted.get() == 3
