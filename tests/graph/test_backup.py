"""A backup is one consistent file, and each way of restoring it does what docs/backup.md says."""

import gzip
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from kappa.graph import Graph, GraphConfig, NewConcept
from kappa.graph.annealing.executing import execute
from kappa.graph.annealing.proposing import anneal
from kappa.graph.annealing.undoing import undo
from kappa.graph.backup import Mode, Restored, make, pieces_of, restore, verify, write_file
from kappa.graph.backup.archive import Header, Writer
from kappa.graph.backup.catalog import KEPT, LEFT_OUT, TABLES
from kappa.graph.errors import BadBackup, GraphBusy
from kappa.graph.query.budget import Budget
from kappa.graph.store import proposals
from kappa.pg import Database
from tests.conftest import Server
from tests.graph.dump import HISTORY, Lines, dump, whole
from tests.graph.libraries import OTTERS, write_beside, write_document, write_library


@pytest.fixture
def other(server: Server, graph_template: str) -> Iterator[str]:
    """Another database."""
    made = server.create(graph_template)
    yield made
    server.drop(made)


@pytest.fixture
def other_graph(other: str) -> Iterator[Graph]:
    made = Graph(other, GraphConfig(), budget=Budget()).open(listen=False)
    yield made
    made.close()


def backup(url: str, path: Path) -> bytes:
    with Database(url).connect() as connection:
        write_file(make(connection), path)
    return path.read_bytes()


def put(url: str, content: bytes, mode: Mode) -> Restored:
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        return restore(connection, [content], mode)


@pytest.fixture
def library(graph: Graph, url: str, tmp_path: Path) -> bytes:
    """A backup of a library."""
    write_library(graph)
    write_beside(url)
    return backup(url, tmp_path / "library.kappa")


def test_every_table_is_kept_or_left_out_for_a_reason(connection: psycopg.Connection[tuple[str]]) -> None:
    there = {row[0] for row in connection.execute(TABLES.sql)}
    assert there == {*KEPT, *LEFT_OUT}
    assert not set(KEPT) & set(LEFT_OUT)


def test_a_backup_says_what_it_is_and_tar_can_read_it(library: bytes, tmp_path: Path) -> None:
    header, manifest = verify([library])
    assert (header.kappa_backup, manifest.rows["ontologies"], manifest.rows["documents"]) == (2, 2, 2)
    with tarfile.open(fileobj=io.BytesIO(library), mode="r:gz") as tar:
        assert tar.getnames()[0] == "kappa-backup.json"
        assert tar.getnames()[-1] == "manifest.json"
        concepts = tar.extractfile("concepts/000001")
        assert concepts is not None
        assert concepts.read().count(b"\n") == manifest.rows["concepts"]
    assert {path.name for path in tmp_path.iterdir()} == {"library.kappa"}


def test_the_same_graph_gives_the_same_rows(library: bytes, url: str, tmp_path: Path) -> None:
    again = backup(url, tmp_path / "again")
    assert verify([again])[1] != verify([library])[1]  # the header has the time
    first, second = (verify([one])[1].parts for one in (library, again))
    assert {name: first[name] for name in first if "/" in name} == {
        name: second[name] for name in second if "/" in name
    }


def test_replace_makes_the_graph_the_backup(library: bytes, url: str, other: str, other_graph: Graph) -> None:
    write_document(other_graph, "other", "else.txt", "Bats eat moths.", [("bats", "EATS", "moths")])
    put(other, library, Mode.REPLACE)
    assert dump(other) == dump(url)
    whole(other)


def test_replace_twice_is_replace_once(library: bytes, url: str, other: str) -> None:
    put(other, library, Mode.REPLACE)
    put(other, library, Mode.REPLACE)
    assert dump(other) == dump(url)


def test_every_table_that_is_kept_is_compared_with_something_in_it(library: bytes, url: str) -> None:
    rows = dump(url)
    assert set(KEPT) == {*rows, "relation_sources"}, "which stands beside the relations"
    assert [table for table, lines in rows.items() if not lines] == []


def test_what_was_done_before_a_backup_can_be_undone_after_it(
    graph: Graph, url: str, other: str, other_graph: Graph, tmp_path: Path
) -> None:
    def content(of: str) -> Lines:
        return {table: lines for table, lines in dump(of).items() if table not in HISTORY}

    write_library(graph)
    links = [("otters", kind, "fish") for kind in ("EATS", "CONSUMES")] + [("otters", "CONSUMES", "water")]
    write_document(graph, "brooks", "brooks.txt", OTTERS, links)
    states = [content(url)]
    merge = graph.merge_types("CONSUMES", "EATS", by="ada", similarity=0.9)
    assert (merge.relations, merge.united) == (2, 1)
    states.append(content(url))
    with psycopg.connect(url, autocommit=True) as connection:
        anneal(connection)
        proposal = next(one.id for one in proposals.find_all(connection) if one.kind == "merge")
        assert proposals.decide(connection, proposal, "approved", "ada")
        with connection.transaction():
            execute(connection, proposal)
    assert content(url) != states[1]
    put(other, backup(url, tmp_path / "done.kappa"), Mode.REPLACE)
    with psycopg.connect(other, autocommit=True) as connection:
        assert proposals.ask_undo(connection, proposal, "bob")
        with connection.transaction():
            undo(connection, proposal)
    assert content(other) == states[1]
    other_graph.undo_merge(merge.id, by="bob")
    assert content(other) == states[0]
    whole(other)


def test_what_is_written_after_a_restore_collides_with_nothing(library: bytes, other: str, other_graph: Graph) -> None:
    put(other, library, Mode.REPLACE)
    write_document(other_graph, "more", "else.txt", "Bats eat moths.", [("bats", "EATS", "moths")])
    write_library(other_graph)  # all of it is there
    whole(other)
    assert len(dump(other)["concepts"]) == len(set(dump(other)["concepts"]))


def test_a_snapshot_in_memory_follows_a_restore(library: bytes, other: str, other_graph: Graph) -> None:
    ids = other_graph.add_concepts("other", [NewConcept("Bat"), NewConcept("Moth")]).ids
    other_graph.refresh()
    done = put(other, library, Mode.REPLACE)
    assert other_graph.refresh() == done.epoch
    otter = other_graph.concept_by_label("otters")[0]
    assert {one.concept.label for one in other_graph.neighbors([otter.id]).items} == {"Rivers", "Fish"}
    assert other_graph.concept(ids["Bat"]) is None
    assert other_graph.search(like=otter.id).items[0].concept.label == "Fish"


def test_keep_ids_brings_back_what_was_deleted_and_leaves_the_rest(library: bytes, url: str, graph: Graph) -> None:
    before = dump(url)
    graph.delete_ontology("seas")
    write_document(graph, "new", "else.txt", "Bats eat moths.", [("bats", "EATS", "moths")])
    only_new = {table: set(lines) for table, lines in dump(url).items()}
    put(url, library, Mode.KEEP_IDS)
    after = dump(url)
    for table, lines in before.items():
        assert set(lines) <= set(after[table]), table
        assert set(after[table]) == set(lines) | only_new[table], table
    whole(url)


def test_keep_ids_makes_what_is_there_what_the_backup_says(library: bytes, url: str, graph: Graph) -> None:
    before = dump(url)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE kappa_graph.concepts SET description = 'changed', search_terms = '{x}'")
        connection.execute("UPDATE kappa_graph.relations SET confidence = 1, category = 'c'")
        connection.execute("UPDATE kappa_graph.documents SET name = 'other', original = NULL")
        connection.execute("UPDATE kappa_graph.ontologies SET name = name || '!'")
    put(url, library, Mode.KEEP_IDS)
    assert dump(url) == before
    put(url, library, Mode.KEEP_IDS)
    assert dump(url) == before


def test_keep_ids_into_an_empty_graph_is_replace(library: bytes, url: str, other: str) -> None:
    put(other, library, Mode.KEEP_IDS)
    assert dump(other) == dump(url) | {table: [] for table in HISTORY}


def test_keep_ids_refuses_another_ontology_of_the_same_name(library: bytes, other: str, other_graph: Graph) -> None:
    other_graph.ontology("first")
    other_graph.rename_ontology("first", "rivers")
    before = dump(other)
    with pytest.raises(BadBackup, match="keep_ids"):
        put(other, library, Mode.KEEP_IDS)
    assert dump(other) == before


def test_merge_unites_what_says_the_same_under_other_ids(
    library: bytes, url: str, other: str, other_graph: Graph
) -> None:
    """The ontology there began under another name, so that all ids in it are others."""
    other_graph.ontology("first")
    other_graph.rename_ontology("first", "rivers")
    write_library(other_graph, whales=False)
    grown = dump(other)
    put(other, library, Mode.MERGE)
    merged = dump(other, ids=False)
    wanted = dump(url, ids=False)
    for table in ("ontologies", "documents", "concepts", "relation_types", "instances", "relations", "artifacts"):
        assert merged[table] == wanted[table], table
    assert [merged[table] for table in HISTORY] == [[]] * len(HISTORY)
    assert set(grown["concepts"]) <= set(dump(other)["concepts"])  # what was there kept its ids
    whole(other)
    again = dump(other)
    put(other, library, Mode.MERGE)
    assert dump(other) == again


def test_merge_gives_new_concepts_ids_that_the_next_write_finds(library: bytes, other: str, other_graph: Graph) -> None:
    other_graph.ontology("first")
    other_graph.rename_ontology("first", "rivers")
    put(other, library, Mode.MERGE)
    before = dump(other)
    write_library(other_graph)
    assert dump(other) == before


def test_merge_leaves_the_last_word_to_what_is_here(library: bytes, other: str, other_graph: Graph) -> None:
    ids = other_graph.add_concepts("rivers", [NewConcept("OTTERS", "ours", ["mine"])]).ids
    put(other, library, Mode.MERGE)
    found = other_graph.concept(ids["OTTERS"])
    assert found is not None
    assert (found.label, found.description) == ("OTTERS", "ours")
    assert set(found.search_terms) == {"mine", "otters", "otterss"}
    assert [one.label for one in other_graph.concept_by_label("otters")] == ["OTTERS"]
    assert other_graph.evidence(found.id) != []


def test_merge_takes_merged_types_for_what_they_were_merged_into(
    library: bytes, other: str, other_graph: Graph
) -> None:
    write_document(
        other_graph, "rivers", "x", "Bats eat moths.", [("bats", "CONSUMES", "moths"), ("bats", "EATS", "moths")]
    )
    with psycopg.connect(other) as connection:
        connection.execute("DELETE FROM kappa_graph.relations")
        connection.execute(
            "UPDATE kappa_graph.relation_types SET active = false, merged_into = "
            "(SELECT id FROM kappa_graph.relation_types WHERE name = 'CONSUMES') WHERE name = 'EATS'"
        )
    put(other, library, Mode.MERGE)
    said = "".join(dump(other)["relations"])
    assert '"CONSUMES"' in said
    assert '"EATS"' not in said


def test_a_file_that_is_cut_anywhere_is_refused(library: bytes, other: str) -> None:
    before = dump(other)
    for end in [*range(0, len(library), max(1, len(library) // 97)), len(library) - 1]:
        with pytest.raises(BadBackup):
            verify([library[:end]])
    for end in (0, 10, 1000, len(library) // 2, len(library) - 1):
        with pytest.raises(BadBackup):
            put(other, library[:end], Mode.REPLACE)
    assert dump(other) == before


def test_a_flipped_bit_anywhere_is_refused(library: bytes, other: str) -> None:
    before = dump(other)
    for at in [*range(0, len(library), max(1, len(library) // 197)), *range(len(library) - 70, len(library))]:
        broken = bytearray(library)
        broken[at] ^= 1 << at % 8
        with pytest.raises(BadBackup):
            verify([bytes(broken)])
    for at in (3, 500, len(library) // 2, len(library) - 5):
        broken = bytearray(library)
        broken[at] ^= 4
        with pytest.raises(BadBackup):
            put(other, bytes(broken), Mode.REPLACE)
    assert dump(other) == before


def test_anything_behind_or_before_a_backup_is_refused(library: bytes) -> None:
    for wrong in (library + b"\0", library + library, b"\0" + library, b"", b"no backup at all" * 100):
        with pytest.raises(BadBackup):
            verify([wrong])


def test_a_backup_in_small_pieces_is_the_same(library: bytes, url: str, other: str) -> None:
    with psycopg.connect(other, autocommit=True) as connection, connection.transaction():
        restore(connection, (library[at : at + 7] for at in range(0, len(library), 7)), Mode.REPLACE)
    assert dump(other) == dump(url)


def foreign(names: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, content in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return held.getvalue()


def test_a_foreign_archive_is_refused(other: str) -> None:
    wrong = [
        foreign({"photo.jpg": b"x" * 5000}),
        foreign({"kappa-backup.json": b"{}"}),
        foreign({"kappa-backup.json": b"[1, 2"}),
        gzip.compress(b"not a tar" * 1000),
        b"PK\x03\x04" + b"x" * 1000,
    ]
    for content in wrong:
        with pytest.raises(BadBackup):
            put(other, content, Mode.MERGE)


def made_by_hand(header: Header, rows: bytes, counted: int = 1) -> bytes:
    writer = Writer()
    content = writer.header(header) + writer.part("ontologies/000001", rows)
    return content + writer.end(dict.fromkeys(header.tables, 0) | {"ontologies": counted})


def test_a_newer_backup_is_refused_by_name(library: bytes, other: str) -> None:
    header, _ = verify([library])
    row = b"1\t00000000-0000-8000-8000-000000000001\tx\t\t2026-01-01 00:00:00+00\n"
    good = header.model_copy(update={"tables": {"ontologies": header.tables["ontologies"]}})
    with pytest.raises(BadBackup, match="newer version"):
        put(other, made_by_hand(good.model_copy(update={"kappa_backup": 3}), row), Mode.REPLACE)
    with pytest.raises(BadBackup, match="newer version"):
        put(other, made_by_hand(good.model_copy(update={"schema_version": 999}), row), Mode.REPLACE)
    strange = good.model_copy(update={"tables": {"ontologies": [*header.tables["ontologies"], "colour"]}})
    with pytest.raises(BadBackup, match="'colour'"):
        put(other, made_by_hand(strange, row), Mode.REPLACE)
    with pytest.raises(BadBackup, match="'planets'"):
        put(other, made_by_hand(good.model_copy(update={"tables": {"planets": ["id"]}}), b""), Mode.REPLACE)
    with pytest.raises(BadBackup, match="as many rows"):
        put(other, made_by_hand(good, row, counted=2), Mode.REPLACE)
    with pytest.raises(BadBackup, match="can't be read"):
        put(other, made_by_hand(good, b"one\ttwo\n"), Mode.REPLACE)
    with pytest.raises(BadBackup, match="contradicts itself"):
        put(other, made_by_hand(good, row.replace(b"\tx\t", b"\t\t")), Mode.REPLACE)
    put(other, made_by_hand(good, row), Mode.REPLACE)
    assert len(dump(other)["ontologies"]) == 1


def test_an_older_backup_without_a_column_gets_its_default(library: bytes, other: str) -> None:
    header, _ = verify([library])
    short = ["id", "key", "name"]
    old = header.model_copy(update={"kappa_backup": 1, "tables": {"ontologies": short}, "schema_version": 1})
    put(other, made_by_hand(old, b"7\t00000000-0000-8000-8000-000000000001\tx\n"), Mode.REPLACE)
    assert '"description":""' in dump(other)["ontologies"][0]


def test_whoever_reads_meanwhile_sees_the_old_graph_and_whoever_writes_waits(
    library: bytes, url: str, graph: Graph
) -> None:
    graph.delete_ontology("seas")
    before = dump(url)
    written = threading.Event()

    def write() -> None:
        graph.add_concepts("rivers", [NewConcept("Late")])
        written.set()

    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        restore(connection, [library], Mode.REPLACE)
        assert dump(url) == before
        rival = threading.Thread(target=write)
        rival.start()
        with psycopg.connect(url, autocommit=True) as looking:
            while looking.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ).fetchone() == (0,):
                assert not written.is_set()
    rival.join()
    assert len(dump(url)["ontologies"]) == 2
    assert "Late" in "".join(dump(url)["concepts"])


def test_a_writer_that_does_not_end_is_not_waited_for_for_ever(
    library: bytes, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kappa.graph.store.locks.PATIENCE", "50ms")
    with psycopg.connect(url) as writer:
        writer.execute("UPDATE kappa_graph.concepts SET description = 'x'")
        with pytest.raises(GraphBusy):
            put(url, library, Mode.REPLACE)
        writer.rollback()


def test_a_backup_while_others_write_is_one_instant(graph: Graph, url: str, other: str, tmp_path: Path) -> None:
    """Each writer keeps a promise in every commit: as many concepts of `a` as of `b`."""
    stop = threading.Event()

    def write(number: int) -> None:
        at = 0
        while not stop.is_set():
            at += 1
            with graph.transaction() as connection:
                ids = graph.add_concepts("a", [NewConcept(f"{number} {at}")], connection=connection)
                graph.add_concepts("b", [NewConcept(f"{number} {at}")], connection=connection)
                assert ids.concepts == 1
            write_document(graph, "a", f"{number} {at}", f"Bats {number} eat moths {at}.", [("bats", "EATS", "moths")])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for one in writers:
        one.start()
    try:
        files = [tmp_path / f"{number}.kappa" for number in range(5)]
        for path in files:
            backup(url, path)
    finally:
        stop.set()
        for one in writers:
            one.join()
    for path in files:
        with psycopg.connect(other, autocommit=True) as connection, connection.transaction():
            restore(connection, pieces_of(path), Mode.REPLACE)
        whole(other)
        with psycopg.connect(other) as connection:
            counts = connection.execute(
                "SELECT o.name, count(*) FROM kappa_graph.concepts AS c JOIN kappa_graph.ontologies AS o "
                "ON o.id = c.ontology_id WHERE c.label NOT IN ('Bats', 'Moths') GROUP BY 1"
            ).fetchall()
        assert len({count for _, count in counts}) <= 1, counts


def test_a_backup_that_fails_leaves_no_file(tmp_path: Path, url: str) -> None:
    def broken() -> Iterator[bytes]:
        yield b"something"
        raise RuntimeError("the database went away")

    with pytest.raises(RuntimeError):
        write_file(broken(), tmp_path / "x.kappa")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadBackup):
        write_file((piece for piece in [b"no backup"]), tmp_path / "x.kappa")
    with pytest.raises(BadBackup, match="can't be written"), Database(url).connect() as connection:
        write_file(make(connection), tmp_path / "nowhere" / "x.kappa")
    assert list(tmp_path.iterdir()) == []


def test_a_backup_of_an_unmigrated_database_is_refused(empty_url: str) -> None:
    with Database(empty_url).connect() as connection, pytest.raises(Exception, match="kg db migrate"):
        list(make(connection))


def test_rows_larger_than_a_part_go_through(graph: Graph, url: str, other: str, tmp_path: Path) -> None:
    from kappa.graph import NewDocument

    graph.add_document("big", NewDocument("big", "line\n" * 1_200_000, original=bytes(range(256)) * 30_000))
    graph.load_concepts("big", (NewConcept(f"concept {n}", "d" * 300) for n in range(20_000)))
    put(other, backup(url, tmp_path / "big"), Mode.REPLACE)
    assert dump(other) == dump(url)


def test_staged_rows_are_gone_after_a_failure(library: bytes, other: str) -> None:
    with psycopg.connect(other, autocommit=True) as connection:
        with pytest.raises(BadBackup), connection.transaction():
            restore(connection, [library[:-1]], Mode.REPLACE)
        left = sql.SQL("SELECT to_regclass('pg_temp.staged_concepts')")
        assert connection.execute(left).fetchone() == (None,)
