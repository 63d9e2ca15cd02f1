"""Documents into the graph: dropped or chosen, looked at with what they will cost, and submitted as a job."""

import shutil
import tempfile
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from anyio.to_thread import run_sync
from starlette.datastructures import UploadFile
from starlette.responses import Response

from kappa.app.api import problems
from kappa.app.errors import Refused
from kappa.app.kinds import models
from kappa.app.permissions import Permission
from kappa.app.usecases.graph import as_id
from kappa.app.usecases.ingest import AlreadyThere, Uploaded
from kappa.app.web.pages import PREFIX, Pages, Visit
from kappa.pg import KappaError

pages = Pages()

UPLOAD = f"{PREFIX}/ingest"
LARGEST = 256 * 1024 * 1024
"""Bytes of all files that are sent at once."""
NOTHING_NEW = (
    "Nothing was submitted. To have it read again, send it once more and tick “Read again what is there already”."
)
SUMMED = ("documents", "chunks", "words", "tokens", "embeddings", "ocr_pages")


@pages.get("/ingest", Permission.GRAPH_INGEST)
async def ingest(visit: Visit) -> Response:
    return await _form(visit)


@pages.post("/ingest", Permission.GRAPH_INGEST)
async def upload(visit: Visit) -> Response:
    """Read the files; what can't be read is said, and the rest is shown with its estimate."""
    sent = [one for one in visit.form.getlist("files") if isinstance(one, UploadFile) and one.filename]
    taken: list[Uploaded] = []
    refused: list[str] = []
    for one in sent:
        try:
            taken.append(await _upload(visit, one))
        except KappaError as error:
            known = problems.told(visit.request.url.path, error)
            if known is None or known[0] >= 500:
                raise
            refused.append(known[2])
    if not taken:
        return await _form(visit, refused or ["choose a file first"])
    total = {name: sum(getattr(one.estimate, name) for one in taken) for name in SUMMED}
    prices = [one.estimate.price for one in taken]
    return visit.page(
        "ingest_confirm.html", uploads=taken, refused=refused, total=total, ontology=visit.word("ontology"),
        price=None if None in prices else sum(price for price in prices if price is not None), fault="",
        providers=sorted(models.PROVIDERS), chosen=visit.services.settings.provider,
    )  # fmt: skip


@pages.post("/ingest/submit", Permission.GRAPH_INGEST)
async def submit(visit: Visit) -> Response:
    """A job of what was uploaded. It waits for approval, unless it is approved here by somebody who may."""
    keys: list[UUID] = []
    for text in visit.several("uploads"):
        if (key := as_id(text)) is None:
            raise Refused(f"{text!r} is no upload")
        keys.append(key)
    try:
        submitted = await visit.services.ingestions.submit(
            visit.who, visit.word("ontology"), keys, provider=visit.word("provider") or None,
            auto_approve=visit.word("approve") == "yes", force=visit.word("force") == "yes",
        )  # fmt: skip
    except AlreadyThere as error:
        return await _form(visit, [*map(str, error.duplicates), NOTHING_NEW], 409)
    visit.services.overview.forget()
    left_out = len(submitted.duplicates)
    return visit.to_job(submitted.job, f"{UPLOAD}?submitted={submitted.job}&left_out={left_out}", left_out)


async def _upload(visit: Visit, sent: UploadFile) -> Uploaded:
    path = await run_sync(_spool, sent.file)
    try:
        return await visit.services.ingestions.upload(visit.who, sent.filename or "", path)
    finally:
        await run_sync(path.unlink)


def _spool(source: IO[Any]) -> Path:
    with tempfile.NamedTemporaryFile(prefix="kappa-upload-", delete=False) as kept:
        shutil.copyfileobj(source, kept, 1 << 20)
        return Path(kept.name)


async def _form(visit: Visit, refused: list[str] | None = None, status: int = 422) -> Response:
    # Whoever may feed documents and no more types a name; which there are, only readers see.
    ontologies = await visit.services.graph.ontologies() if visit.may(Permission.GRAPH_READ) else []
    return visit.page(
        "ingest.html", status if refused else 200, ontologies=ontologies, refused=refused or [],
        submitted=visit.asked_number("submitted"), left_out=visit.asked_number("left_out"),
    )  # fmt: skip
