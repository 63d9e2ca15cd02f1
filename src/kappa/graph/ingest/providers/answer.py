"""The question to a model, from prompt.md and schema.json, and its answer as an extraction.

The instructions are the same for every text; what comes from documents travels beside them as one JSON value, so that
no text can end its own quotation. What comes back is held against the schema here, whoever promised to keep to it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kappa.graph.ingest.extraction import Context, Extraction, FoundConcept, FoundInstance, FoundRelation, Modality

MOST_LABELS = 200
"""Known labels that a question carries."""

Category = Literal[
    "taxonomy", "identity", "structure", "place", "dependency", "causal", "change", "evidence", "exchange", "time",
    "other",
]  # fmt: skip


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Concept(_Strict):
    label: str
    description: str
    search_terms: list[str]


class _Instance(_Strict):
    concept: str
    quote: str


class _Relation(_Strict):
    from_label: str = Field(alias="from")
    to_label: str = Field(alias="to")
    type: str
    confidence: float
    category: Category
    modality: Modality


class Knowledge(_Strict):
    """What schema.json describes."""

    concepts: list[_Concept]
    instances: list[_Instance]
    relations: list[_Relation]


class Unusable(ValueError):
    """The answer is not of the schema; says how, without repeating the answer."""


@cache
def instructions(name: str = "prompt") -> str:
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")


@cache
def _schema() -> str:
    return Path(__file__).with_name("schema.json").read_text(encoding="utf-8")


def schema() -> dict[str, Any]:
    """A copy, as SDKs may write in it."""
    return json.loads(_schema())


def question(text: str, context: Context) -> str:
    """The text and what is known besides it, as data."""
    asked = {
        "ontology": context.ontology,
        "document": context.document,
        "known_labels": list(context.known_labels)[:MOST_LABELS],
        "text": text,
    }
    return json.dumps(asked, ensure_ascii=False)


def extraction(said: str) -> Extraction:
    try:
        found = Knowledge.model_validate_json(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "json_invalid":
            raise Unusable("answered something that is no JSON") from None
        raise Unusable(
            f"answered something that is not of the schema: {place or 'the whole'}: {first['msg']}"
        ) from None
    return Extraction(
        tuple(FoundConcept(one.label, one.description, tuple(one.search_terms)) for one in found.concepts),
        tuple(FoundInstance(one.concept, one.quote) for one in found.instances),
        tuple(
            FoundRelation(one.from_label, one.to_label, one.type, one.confidence, one.category, one.modality)
            for one in found.relations
        ),
    )
