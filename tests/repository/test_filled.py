"""A database that a benchmark has filled is what a server would have written."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
from sqlalchemy import create_engine, inspect

from benchmarks.filled import OLD_MODEL, VERSIONS, fill, name_of
from comln_serve.domain.report import Report
from comln_serve.domain.sixteen_bits import rounded
from comln_serve.storage import Store
from comln_serve.storage.schema import NEWEST
from tests.support.classifiers import classifier, same, support
from tests.support.databases import execute

REPORT = Report(held_out=None, notes=["made up"], near_duplicates=[[1, 3]], own_horizon=True, unknown_threshold=0.5)
MADE = [
    (classifier(f"clf_{seed}", "made", seed=seed, report=REPORT, metadata={"shelf": "3"}), support(seed))
    for seed in range(2)
]
COUNT = 2 * VERSIONS + 2


def content(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    tables = inspect(engine).get_table_names()
    engine.dispose()
    return {table: sorted(execute(url, f"SELECT * FROM {table}"), key=repr) for table in tables}


def test_the_rows_are_those_of_a_server(make_url: Callable[[str], str], database_url: str) -> None:
    fill(database_url, MADE, COUNT)
    other = make_url("sqlite" if database_url.startswith("sqlite") else "postgresql")
    with closing(Store(database_url)) as store, closing(Store(other)) as served:
        filled = store.for_tenant("")
        listed = filled.page(limit=COUNT)[0]
        for record in reversed(listed):
            made, examples = filled.find(record.id), filled.support(record.id)[1]
            added = served.for_tenant("").add(replace(made, version=None, promoted=False), examples, limit=COUNT)
            assert same(replace(added, promoted=made.promoted), made)
    assert content(database_url) == content(other)


def test_no_two_classifiers_are_alike(database_url: str) -> None:
    fill(database_url, MADE, COUNT)
    with closing(Store(database_url)) as store:
        listed = store.for_tenant("").page(limit=COUNT)[0]
        assert len({record.id for record in listed}) == COUNT
        assert {record.name for record in listed} == {name_of(i) for i in range(3)}
        assert [record.id for record in listed if record.model == OLD_MODEL] == [listed[-1].id]
        embeddings = [store.for_tenant("").support(record.id)[1].embeddings.tobytes() for record in listed]
        assert len(set(embeddings)) == COUNT
        first = store.for_tenant("").find(listed[-1].id)
        assert np.allclose(first.W, MADE[0][0].W, rtol=0.1)


def test_rounded_embeddings_stay_rounded(database_url: str) -> None:
    fill(database_url, [(made, replace(s, embeddings=rounded(s.embeddings))) for made, s in MADE], COUNT)
    assert execute(database_url, "SELECT count(*) FROM supports WHERE scales IS NULL") == [(0,)]


def test_a_database_of_before_is_migrated(database_url: str) -> None:
    fill(database_url, MADE, COUNT, revision="0001")
    with closing(Store(database_url)) as store:
        assert store.count() == COUNT
        assert store.for_tenant("").find(f"{name_of(1)}@2").report == REPORT
    assert execute(database_url, "SELECT version_num FROM comln_schema") == [(NEWEST,)]
