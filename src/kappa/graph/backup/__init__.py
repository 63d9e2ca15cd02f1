"""The graph as one file, and back.

A backup is made of one snapshot while others write, and is read as a stream; what it restores is changed in the
caller's transaction, whole or not at all. Needs no numpy.
"""

from kappa.graph.backup.archive import FORMAT, Header, Manifest
from kappa.graph.backup.making import make, write_file
from kappa.graph.backup.restoring import Mode, Restored, restore
from kappa.graph.backup.verifying import pieces_of, verify

__all__ = [
    "FORMAT",
    "Header",
    "Manifest",
    "Mode",
    "Restored",
    "make",
    "pieces_of",
    "restore",
    "verify",
    "write_file",
]
