"""Statements about what is measured of the vocabulary. What is measured again and found the same is not written."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from psycopg import Connection
from psycopg.types.json import Jsonb

from kappa.graph.identity import kept
from kappa.pg import queries
from kappa.pg.ops import Op
from kappa.pg.queries import Row

sql = queries.beside(__file__)
TYPES = sql["types"]
EMBEDDINGS = sql["embeddings"]
USED = sql["used"]
LACKING = sql["lacking"]
MODELS = sql["models"]
SET_EMBEDDINGS = sql["set_embeddings"]
SEEDS = sql["seeds"]
ADD_SEEDS = sql["add_seeds"]
SET_MEASURES = sql["set_measures"]
SET_CATEGORIES = sql["set_categories"]
ACTIVE = sql["active"]
SAMPLE = sql["sample"]
SET_EPISTEMIC = sql["set_epistemic"]
LAST_MEASURED = sql["last_measured"]
CHANGED = sql["changed"]
SET_MEASURED = sql["set_measured"]


class TypeRow(NamedTuple):
    """A type with all that is known of it."""

    number: int
    name: str
    category: str
    active: bool
    merged_into: str | None
    relations: int
    stance: float | None
    model: str | None
    scores: dict[str, float] | None
    best: str | None
    ambiguous: bool
    epistemic: Any
    grounding: float | None
    sampled: int | None


class Embedded(NamedTuple):
    """An active type with its vector."""

    number: int
    name: str
    category: str
    vector: list[float]


class Scored(NamedTuple):
    """What an embedding says of a type."""

    number: int
    stance: float | None
    """None where it says nothing."""
    scores: Mapping[str, float]
    best: str
    ambiguous: bool


class Last(NamedTuple):
    """What a kind of measuring found last, with what parameters, and up to which epoch that holds."""

    parameters: Mapping[str, Any]
    epoch: int
    result: Mapping[str, Any]


def types(connection: Connection[Row]) -> list[TypeRow]:
    return [TypeRow(*row) for row in connection.execute(TYPES.sql)]


def embeddings(connection: Connection[Row], model: str) -> list[Embedded]:
    return [Embedded(*row) for row in connection.execute(EMBEDDINGS.sql, {"model": kept(model)}, binary=True)]


def used(connection: Connection[Row], names: Sequence[str]) -> dict[str, int]:
    """How many relations these types have."""
    return dict(connection.execute(USED.sql, {"names": [kept(name) for name in names]}).fetchall())


def lacking(connection: Connection[Row], model: str) -> list[str]:
    return [row[0] for row in connection.execute(LACKING.sql, {"model": kept(model)})]


def models(connection: Connection[Row]) -> list[str]:
    """That embedded active types, the most used first."""
    return [row[0] for row in connection.execute(MODELS.sql)]


def set_embeddings(connection: Connection[Row], model: str, vectors: Mapping[str, Sequence[float]]) -> int:
    """By name; how many were there without one by this model."""
    return len(connection.execute(SET_EMBEDDINGS.sql, _vectors(model, vectors)).fetchall())


def seeds(connection: Connection[Row], model: str) -> dict[str, list[float]]:
    return dict(connection.execute(SEEDS.sql, {"model": kept(model)}, binary=True).fetchall())


def add_seeds(connection: Connection[Row], model: str, vectors: Mapping[str, Sequence[float]]) -> None:
    connection.execute(ADD_SEEDS.sql, _vectors(model, vectors))


def _vectors(model: str, vectors: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    texts = ["{" + ",".join(repr(float(value)) for value in vector) + "}" for vector in vectors.values()]
    return {"model": kept(model), "names": [kept(name) for name in vectors], "embeddings": texts}


def set_measures(connection: Connection[Row], model: str, scored: Sequence[Scored]) -> int:
    """How many are other than before."""
    params = {
        "model": kept(model),
        "numbers": [one.number for one in scored],
        "stances": [one.stance for one in scored],
        "scores": [json.dumps(dict(one.scores)) for one in scored],
        "bests": [one.best for one in scored],
        "ambiguous": [one.ambiguous for one in scored],
    }
    return len(connection.execute(SET_MEASURES.sql, params).fetchall())


def set_categories(connection: Connection[Row], categories: Mapping[int, str]) -> int:
    """Of types that have none; how many those were."""
    params = {"numbers": list(categories), "categories": list(categories.values())}
    return len(connection.execute(SET_CATEGORIES.sql, params).fetchall())


def active(connection: Connection[Row]) -> list[tuple[int, str]]:
    return [(row[0], row[1]) for row in connection.execute(ACTIVE.sql)]


def sample(connection: Connection[Row], number: int, seed: int, most: int) -> list[int]:
    """Targets of some relations of a type; one may be there twice."""
    return [row[0] for row in connection.execute(SAMPLE.sql, {"type": number, "seed": seed, "most": most})]


def set_epistemic(
    connection: Connection[Row], number: int, epistemic: str, grounding: float | None, sampled: int, grounded: int
) -> bool:
    """Whether it is other than before."""
    params = {
        "type": number, "epistemic": epistemic, "grounding": grounding, "sampled": sampled, "grounded": grounded,
    }  # fmt: skip
    return connection.execute(SET_EPISTEMIC.sql, params).fetchone() is not None


def last_measured(connection: Connection[Row], kind: str) -> Last | None:
    row = connection.execute(LAST_MEASURED.sql, {"kind": kind}).fetchone()
    return Last(*row) if row else None


def changed(kind: str, parameters: Mapping[str, Any]) -> Op[bool]:
    """Whether the graph is other than when the kind measured it last, or the parameters are."""
    return Op(CHANGED, {"kind": kind, "parameters": Jsonb(parameters)}, lambda rows: rows[0][0])


def set_measured(
    connection: Connection[Row], kind: str, parameters: Mapping[str, Any], epoch: int, result: Mapping[str, Any]
) -> None:
    params = {"kind": kind, "parameters": Jsonb(parameters), "epoch": epoch, "result": Jsonb(result)}
    connection.execute(SET_MEASURED.sql, params)
