"""`kg artifact` and `kg projection`: results that are kept, and the map of concepts."""

import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from kappa.app import remote, settings
from kappa.app.api.measure_schemas import KeptArtifact
from kappa.app.api.ontology_schemas import OntologyDetail
from kappa.app.cli import show, tables, values
from kappa.app.cli.jobs import run_job

app = typer.Typer(no_args_is_help=True, help="Artifacts: maps, axes and other results that are kept.")

ArtifactId = Annotated[UUID, typer.Argument(metavar="ID", help="The artifact.", show_default=False)]
To = Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Write the picture there; - is standard output.")]

OTHER_PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"}
"""What a file is called that no program would open with an SVG in it."""


class Way(StrEnum):
    TSNE = "tsne"
    PCA = "pca"


@app.command(name="list")
def list_artifacts(
    kind: Annotated[str | None, typer.Option(help="Only of this kind, as in projection.")] = None,
    ontology: Annotated[str | None, typer.Option(help="Only of this ontology.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many at most.")] = 50,
    as_json: show.AsJson = False,
) -> None:
    """List artifacts, the latest first.

    Example: kg artifact list --kind projection
    """
    with remote.open_server(settings.load()) as server:
        query = {"kind": kind, "ontology": ontology, "limit": limit}
        found = server.get("/artifacts", list[KeptArtifact], query)
    if as_json:
        show.as_json(found)
    elif found:
        show.out.print(tables.artifacts(found))
    else:
        show.say("no artifacts like that")


@app.command(name="show")
def show_artifact(
    artifact_id: ArtifactId,
    content: Annotated[bool, typer.Option("--content", help="What it says, as JSON.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Show what is known of an artifact, or what it says.

    Example: kg artifact show 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b --content
    """
    with remote.open_server(settings.load()) as server:
        if content:
            said: Any = server.get(f"/artifacts/{artifact_id}/content", dict[str, Any])
            show.as_json(said)
            return
        found = server.get(f"/artifacts/{artifact_id}", KeptArtifact)
    if as_json:
        show.as_json(found)
    else:
        show.fields(found.model_dump(exclude_none=True) | {"parameters": tables.compact(found.parameters)})


@app.command()
def save(artifact_id: ArtifactId, to: To = None, as_json: show.AsJson = False) -> None:
    """Write an artifact's picture to a file, by default one named after it.

    Example: kg artifact save 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b --to map.svg
    """
    saved(artifact_id, to, as_json)


def projection(
    ontology: Annotated[str | None, typer.Option(help="Only concepts of this ontology.")] = None,
    way: Annotated[Way, typer.Option(help="t-SNE keeps neighbours together, PCA is quick.")] = Way.TSNE,
    most: Annotated[int, typer.Option(min=1, max=20_000, help="Concepts, the best connected.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Another one, other clusters.")] = 1,
    to: To = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Put the job in, and don't watch it.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Draw a map of concepts by their embeddings, in clusters that are named by their words.

    Example: kg projection --ontology 'coffee and sleep' --to map.svg
    """
    if ontology is not None:  # one that is not there is refused here, not by a job that fails later
        with remote.open_server(settings.load()) as server:
            server.get(f"/graph/ontologies/{remote.segment(ontology)}", OntologyDetail)
    payload = {"ontology": ontology, "way": way.value, "most": most, "seed": seed}
    drawn("projection", payload, to, as_json, wait=not no_wait)


def drawn(kind: str, payload: dict[str, Any], to: Path | None, as_json: bool, *, wait: bool = True) -> None:
    """Have a job draw something, and take the picture."""
    _check_place(to)  # known before the work, not after
    if to is not None and str(to) != "-" and (to.is_dir() or not to.parent.is_dir()):
        raise values.BadInput(f"{to} can't be written: it is a directory, or in none")
    job = run_job(kind, payload, as_json=as_json and to is None, wait=wait)
    if job is not None and to is not None:
        saved(UUID(job.result["artifact"]), to, as_json)


def _check_place(to: Path | None) -> None:
    if to is not None and to.suffix.lower() in OTHER_PICTURES:
        raise values.BadInput(f"{to} can't be written: pictures are SVG, as in {to.with_suffix('.svg')}")


def saved(artifact_id: UUID, to: Path | None, as_json: bool) -> None:
    _check_place(to)
    with remote.open_client(settings.load()) as client:
        answer = remote.check(client.get(f"/artifacts/{artifact_id}/data"))
    if to is not None and str(to) == "-":
        sys.stdout.buffer.write(answer.content)
        return
    ending = ".svg" if answer.headers["content-type"].startswith("image/svg") else ".bin"
    place = to or Path(f"{artifact_id}{ending}")
    draft = place.with_name(f".{place.name}.part")
    try:
        draft.write_bytes(answer.content)
        draft.replace(place)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise values.BadInput(f"{place} can't be written: {error.strerror}") from None
    if as_json:
        show.as_json({"artifact": str(artifact_id), "file": str(place), "bytes": len(answer.content)})
    else:
        show.line(f"{artifact_id} is in {place}")
