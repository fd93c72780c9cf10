"""Blocks from Python workers and from executors' JVMs are the same data, and which of the two a session takes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import phalanx
import pyarrow as pa
import pytest
from phalanx.feeding.blocks import write as write_blocks
from phalanx.feeding.blocks.identity import Identity
from phalanx.feeding.blocks.jobs import BlockJobs, JvmJobs, WorkerJobs, WrittenBlock, block_jobs
from phalanx.feeding.blocks.row_hash import DataRows
from phalanx.feeding.given import readable
from support import sessions
from support.tiers import whole

pytestmark = pytest.mark.timeout(150)

EVERY_TYPE = [
    "id",
    *(
        f"if(id % 7 = 1, null, cast(id % 100 - 50 as {kind})) as `{kind} {name}`"
        for name, kind in enumerate(
            [
                "tinyint",
                "smallint",
                "int",
                "float",
                "double",
                "boolean",
                "decimal(9,2)",
                "decimal(38,5)",
                "string",
            ]
        )
    ),
    "id / 7.0D as `not null`",
    "if(id % 7 = 2, null, date_add(date'1970-01-01', int(id))) as day",
    "if(id % 7 = 3, null, timestamp_micros(id - 20)) as time",
    "cast(timestamp_micros(id) as timestamp_ntz) as ntz",
    "if(id % 7 = 5, null, make_time(int(id % 24), int(id % 60), id % 60)) as clock",
    "if(id % 7 = 4, null, make_dt_interval(0, 0, 0, id)) as span",
    "if(id % 5 = 1, null, unhex(hex(id))) as raw",
    "if(id % 5 = 2, null, transform(sequence(0, int(id % 5)), i -> if(i = 3, null, float(i)))) as ragged",
    "array(double(id), double('nan')) as pair",
    "array(id % 2 = 0, true, null) as flags",
    "transform(sequence(0, int(id % 3)), i -> transform(sequence(0, i), j -> smallint(j))) as deep",
    "array(string(id), null, '') as texts",
    "cast(array() as array<bigint>) as none",
    "cast(null as array<int>) as gone",
    "if(id % 5 = 3, null, named_struct('a', id, 'b', named_struct('c', string(id), 'd', array(id)))) as s",
    "if(id % 5 = 4, null, map(id, array(id), id + 1, null)) as m",
    "array(named_struct('e', id), null) as structs",
]


@pytest.fixture(scope="module", params=["jvm"])
def spark() -> Iterator[Any]:
    """A classic session with one core, and the jar."""
    session = sessions.one_core(phalanx.spark_conf())
    settings = {"spark.sql.session.timeZone": "Asia/Kolkata", "spark.sql.timeType.enabled": "true"}
    for key, value in settings.items():
        session.conf.set(key, value)
    yield session
    for key in settings:
        session.conf.unset(key)


@pytest.fixture
def both(spark: Any, tmp_path: Path) -> Any:
    """Writes a DataFrame both ways: the tables, and the facts and the identity of each."""

    def write(frame: Any) -> list[tuple[pa.Table, list[Any]]]:
        ways: list[BlockJobs] = [WorkerJobs(spark), JvmJobs(spark)]
        return [read(written(way, frame, str(tmp_path / uuid.uuid4().hex), kept=True)) for way in ways]

    return write


def written(way: BlockJobs, frame: Any, folder: str, *, kept: bool) -> list[WrittenBlock]:
    return way.writing(DataRows.of(frame), folder, kept=kept).write()


def read(blocks: list[WrittenBlock]) -> tuple[pa.Table, list[Any]]:
    blocks = sorted(blocks)
    found = []
    for block in blocks:
        assert block.start % write_blocks.ALIGNMENT == 0
        data = Path(block.path).read_bytes()[block.start : block.start + block.bytes]
        with pa.ipc.open_stream(data) as stream:
            (batch,) = list(stream)
        batch.validate(full=True)
        assert batch.num_rows == block.rows
        assert write_blocks.facts_of(batch) == block.facts
        found.append(batch)
    parts = [Identity.of(block.rows, block.content, block.sequence) for block in blocks]
    return pa.Table.from_batches(found), [*(block.facts for block in blocks), Identity.together(parts)]


def test_every_type_is_the_same_from_python_workers_and_from_jvms(spark: Any, both: Any) -> None:
    frame = spark.range(0, 700, 1, 2).selectExpr(*EVERY_TYPE)
    for rows in (frame, frame.where("id % 3 > 0 and day is not null"), frame.where("id = 8")):
        (workers, told), (jvms, jvms_told) = both(rows)
        assert jvms.schema.equals(workers.schema, check_metadata=True), "FEED-59"
        # `equals` takes no NaN for another.
        assert jvms.to_pylist().__repr__() == workers.to_pylist().__repr__(), "FEED-59"
        assert jvms_told == told


HARD_NUMBERS = [
    "float('-0.0')",
    "float('0')",
    "float('nan')",
    "float('-infinity')",
    "float('1e-45')",
    "null",
]
HARD_DECIMALS = ["null", "0", "1", "-1", "127", "128", "-128", "-129", "255", "-256", "65535", "-32769"]


@whole("what rust/data/src/row_hash has for one line of Spark")
def test_hashes_of_the_core_are_those_of_spark(spark: Any, both: Any) -> None:
    of = {
        "numbers": f"element_at(array({', '.join(HARD_NUMBERS)}), int(id % {len(HARD_NUMBERS)}) + 1)",
        "decimal": f"element_at(array({', '.join(HARD_DECIMALS)}), int(id % {len(HARD_DECIMALS)}) + 1)",
    }
    longest = "(if(id % 2 = 0, '-', '') || repeat('9', int(id % {digits}) + 1))"
    hard = spark.range(0, 3000, 1, 2).selectExpr(
        f"{of['numbers']} as float",
        f"double({of['numbers']}) as double",
        f"transform(sequence(0, int(id % 13)), i -> {of['numbers'].replace('id', '(id + i)')}) as holes",
        "filter(transform(sequence(0, int(id * id % 97)), i -> float(i) * (id % 7 - 3)), x -> x < 90) as ragged",
        "if(id % 3 = 0, null, filter(array(-id, id, 7), x -> x > id % 11)) as longs",
        "transform(sequence(0, int(id % 4)), i -> filter(array(smallint(i), smallint(-i)), x -> x <> 1)) as whole",
        "transform(sequence(0, int(id % 4)), i -> if(i = 2, null, array(tinyint(i)))) as deep",
        "substring(repeat('Zürich ø', 30), 1, int(id % 101)) as text",
        "if(id % 11 = 0, null, unhex(repeat('ff', int(id % 101)))) as raw",
        "if(id % 4 = 1, null, id % 2 = 0) as flag",
        *(
            f"cast({value.format(digits=digits)} as decimal({digits},0)) as {name}{digits}"
            for digits in (9, 18, 19, 38)
            for name, value in (("short", of["decimal"]), ("long", longest))
        ),
        "map(id % 5, map('a', -id, 'b', null), 9, null, id % 5 + 10, map()) as maps",
        "if(id % 9 = 0, null, map_from_arrays(sequence(0, id % 7), sequence(id % 7, 0))) as turned",
        "named_struct('x', map('k', id), 'y', if(id % 2 = 0, null, named_struct('z', array(id, null)))) as s",
        "array(named_struct('m', map(id, timestamp_micros(id)), 'n', date_add(date'1960-01-01', int(id)))) as t",
    )
    (_, told), (_, jvms_told) = both(hard)
    assert jvms_told[-1] == told[-1], "FEED-62"
    for column in hard.columns:
        (_, told), (_, jvms_told) = both(hard.select(column))
        assert jvms_told[-1] == told[-1], column


@pytest.mark.parametrize("columns", [1, 60, 61, 130])
def test_nulls_at_every_place_are_hashed_as_spark_does(spark: Any, both: Any, columns: int) -> None:
    frame = spark.range(0, 1500, 1, 1).selectExpr(
        *(
            f"if(id % {columns + 1} = {at}, null, {['id', 'float(id)', 'string(id)', 'array(id)'][at % 4]}) as c{at}"
            for at in range(columns)
        )
    )
    (_, told), (_, jvms_told) = both(frame)
    assert jvms_told[-1] == told[-1]


def test_fields_that_differ_in_their_case_alone_are_hashed_apart(spark: Any, both: Any) -> None:
    def frame(first: str, second: str) -> Any:
        fields = f"'a', {first}, 'A', {second}, 't', timestamp_micros(id), 'b', named_struct('c', 1, 'C', map(1, id))"
        return spark.range(0, 50, 1, 1).selectExpr(f"named_struct({fields}) as s")

    found = []
    for first, second in (
        ("map(1, id, 2, 0L)", "map(1, 3L)"),
        ("map(2, 0L, 1, id)", "map(1, 3L)"),
        ("map(1, 3L)", "map(1, id, 2, 0L)"),
    ):
        (_, told), (_, jvms_told) = both(frame(first, second))
        assert jvms_told[-1] == told[-1]
        found.append(told[-1])
    assert found[0] == found[1] != found[2], "FEED-64"


def test_vectors_and_text_of_other_widths_are_the_same(spark: Any, both: Any) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    vectors = spark.range(0, 20, 1, 2).select(
        "id", array_to_vector(F.array(F.col("id") / 3, F.lit(0.0))).alias("v")
    )
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        for frame in (
            readable("train", vectors),
            spark.range(9).selectExpr("string(id) as t", "unhex(hex(id)) as b"),
        ):
            (workers, told), (jvms, jvms_told) = both(frame)
            assert jvms.schema.equals(workers.schema, check_metadata=True)
            assert jvms.equals(workers)
            assert jvms_told == told
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_no_python_worker_takes_part_in_what_the_jvms_do(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.range(0, 1000, 1, 2).groupBy("id").count().orderBy("id")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/there/is/no/python")
    with pytest.raises(Exception, match="/there/is/no/python"):
        written(WorkerJobs(spark), frame, str(tmp_path / "kept"), kept=True)
    blocks = written(JvmJobs(spark), frame, "phalanx-data-here", kept=False)  # FEED-3
    assert read(blocks)[0].to_pydict() == {"id": list(range(1000)), "count": [1] * 1000}
    JvmJobs(spark).remove([], "phalanx-data-here", 1)
    assert not Path(blocks[0].path).parent.exists()


def test_the_jvms_write_where_the_jar_is_unless_the_python_stage_is_wanted(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="phalanx")
    assert isinstance(block_jobs(spark), JvmJobs), "FEED-3"
    assert caplog.messages == ["Blocks of data sets are written by the executors' JVMs"]
    spark.conf.set("spark.phalanx.stage", "python")
    try:
        assert isinstance(block_jobs(spark), WorkerJobs), "FEED-3"
        assert caplog.messages[1:] == [
            "Blocks of data sets are written by Python workers, because spark.phalanx.stage is python"
        ]
    finally:
        spark.conf.unset("spark.phalanx.stage")
