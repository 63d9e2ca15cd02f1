"""Statements that find concepts by what is said of them, in four ways. None of a later way is before one of an earlier.

A label that is the text has score 1, one that begins with it 0.75 to 0.95, a concept that has every word 0.5 to 0.75;
one that has some words, or a label that is spelled much like the text, stays below 0.5.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from psycopg import Connection

from kappa.graph.identity import kept
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
WORDS = sql["words"]
NAMED = sql["named"]
EVERY_WORD = sql["every_word"]
SOME_WORD = sql["some_word"]
SPELLED_LIKE = sql["spelled_like"]

MAX_SPELLED = 100
"""Characters of a text beyond which it is taken for more than a name that somebody misspelt."""
_LAST = "\U0010ffff"
"""Behind everything that begins with a text."""
_OPERATORS = re.compile(r'"|(?<!\S)-\S')


class Said(NamedTuple):
    """A text that is looked for."""

    text: str
    plain: bool
    """Without the signs for what must stand together (quotes) or must not be there (minus)."""
    every: str = ""
    some: str = ""
    """Its words, as PostgreSQL's full text search asks for them."""


class TextHit(NamedTuple):
    """A concept, its score, and what of it has some of the words."""

    node: int
    score: float
    label: bool
    terms: bool
    description: bool


def said(text: str) -> Said:
    """The text as it is looked for; empty if there is not one letter or digit in it."""
    clean = " ".join(kept(text).split())
    return Said(clean if any(map(str.isalnum, clean)) else "", _OPERATORS.search(clean) is None)


def worded(connection: Connection[Row], asked: Said) -> Said:
    """The same with its words. They are made once: a statement that makes them may do so for every row."""
    row = connection.execute(WORDS.sql, {"said": asked.text, "plain": asked.plain}).fetchone()
    assert row is not None
    return asked._replace(every=row[0], some=row[1])


def find(
    connection: Connection[Row],
    way: queries.Query,
    asked: Said,
    ontologies: Sequence[int] | None,
    never: int,
    most: int,
) -> list[TextHit]:
    """The best of one way, in order: highest score, then lowest node. `never` is a node that is left out."""
    values = {
        "said": asked.text,
        "every": asked.every,
        "some": asked.some,
        "last": _LAST,
        "ontologies": None if ontologies is None else list(ontologies),
        "never": never,
        "most": most,
    }
    params = {name: values[name] for name in way.parameters}
    hits = (TextHit(*row) for row in connection.execute(way.sql, params))
    return sorted(hits, key=lambda hit: (-hit.score, hit.node))


def ways(asked: Said) -> list[queries.Query]:
    """How such a text is looked for, the best way first."""
    if not asked.text:
        return []
    if not asked.plain:
        return [EVERY_WORD]
    return [NAMED, EVERY_WORD, SOME_WORD, *([SPELLED_LIKE] if len(asked.text) <= MAX_SPELLED else [])]
