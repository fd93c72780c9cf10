"""Data sets that are kept: the first run writes them, later ones read them, and nothing is taken for what it isn't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TrainingError
from phalanx.feeding.blocks.index import Index
from phalanx.feeding.blocks.source import MappedBlocks
from phalanx.feeding.given import is_data
from phalanx.feeding.preparation import Preparation
from phalanx.feeding.source import DataSet
from phalanx.feeding.stored.place import INDEX
from support import sessions
from support.tiers import whole

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module", params=["python", "jvm"])
def spark(request: pytest.FixtureRequest) -> Any:
    """A classic session with one core, whose blocks are written by Python workers, or by executors' JVMs."""
    return sessions.one_core({} if request.param == "python" else phalanx.spark_conf())


@pytest.fixture(params=["folder", pytest.param("fsspec", marks=whole("another place"))])
def uri(request: Any, tmp_path: Path) -> str:
    """A place that isn't there yet: a path, and one that only fsspec opens."""
    path = tmp_path / "kept"
    return str(path) if request.param == "folder" else f"simplecache::file://{path}"


def prepare(spark: Any, data: Any) -> Index:
    """The index of a run's data set; the run is over."""
    one = Preparation(spark, {"train": data}, local_mode=True)
    try:
        return Index.read(one.run()["train"])
    finally:
        one.remove()


def numbers(index: Index, folder: Path) -> list[int]:
    """What ranks get; `folder` is for what they fetch."""
    folder.mkdir(exist_ok=True)
    source = MappedBlocks(index, None, str(folder))
    loaders = [
        DataSet(source).loader(batch_size=7, shuffle=True, uneven="pad", rank=rank, world_size=2)
        for rank in range(2)
    ]
    return sorted(i for loader in loaders for batch in loader for i in batch["id"][batch["mask"]].tolist())


def test_the_first_run_writes_and_later_runs_read_without_computing(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    computed = tmp_path / "computed"

    def counted(batches: Any) -> Any:
        with open(computed, "a") as file:
            file.write("x")
        yield from batches

    frame = spark.range(0, 50, 1, 2).mapInArrow(counted, "id long")
    first = prepare(spark, phalanx.stored(frame, uri))
    assert numbers(first, tmp_path / "rank") == list(range(50)), "FEED-35"
    times = computed.read_text()
    second = prepare(spark, phalanx.replicated(phalanx.stored(frame, uri)))
    assert computed.read_text() == times, "nothing is computed"
    assert (first.files, first.blocks) == (second.files, second.blocks)
    assert second.whole
    assert numbers(second, tmp_path / "rank") == sorted([*range(50)] * 2)
    assert list((tmp_path / "rank").iterdir()) == [], "what was fetched has no name"


def test_of_two_runs_that_fill_one_place_one_does_and_both_read_it(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    frame = spark.range(0, 50, 1, 2)
    runs = [Preparation(spark, {"train": phalanx.stored(frame, uri)}, local_mode=True) for _ in range(2)]
    indexes = [Index.read(one.run()["train"]) for one in runs]  # both have seen an empty place
    for one in runs:
        one.remove()
    assert indexes[0] == indexes[1]
    folders = [path.name for path in (tmp_path / "kept").iterdir() if path.is_dir()]
    assert folders == [runs[0].folder], "FEED-16"
    assert numbers(indexes[1], tmp_path / "rank") == list(range(50))
    third = Preparation(spark, {"train": phalanx.stored(frame, f"{uri}2")}, local_mode=True)
    prepare(spark, phalanx.stored(frame.selectExpr("cast(id as string) as id"), f"{uri}2"))
    with pytest.raises(
        TrainingError, match=r"another run has filled .*kept2 meanwhile .written.*it has id string"
    ):
        third.run()
    third.remove()
    assert len([path for path in (tmp_path / "kept2").iterdir() if path.is_dir()]) == 1, "FEED-16"


def test_another_query_with_the_same_columns_is_warned_about(
    spark: Any, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    frame = spark.range(0, 50, 1, 2)
    for _ in range(2):
        prepare(spark, phalanx.stored(frame.filter("id > 3"), uri))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    prepare(spark, phalanx.stored(frame.filter("id > 4"), uri))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "'train' is read from" in warning
    assert "a different query has filled" in warning, "FEED-69"


def test_what_an_older_phalanx_has_kept_is_read(spark: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "kept")
    frame = spark.range(0, 50, 1, 2)
    prepare(spark, phalanx.stored(frame, uri))
    path = tmp_path / "kept" / INDEX
    found = json.loads(path.read_text())
    del found["query"], found["index"]["identity"], found["index"]["even_rows"]
    path.write_text(json.dumps({**found, "version": 1}))
    index = prepare(spark, phalanx.stored(frame, uri))
    assert numbers(index, tmp_path / "rank") == list(range(50))
    loader = DataSet(MappedBlocks(index)).loader(batch_size=5, shuffle=True)
    state = {"epoch": 0, "row": 5, "data": index.fingerprint(), "seed": 0, "shuffle": "windows"}
    loader.load_state_dict(state)  # as it was before rows had hashes
    assert loader.state_dict() == {**state, "even_rows": 0}


def test_outside_of_a_run_what_is_stored_is_read_and_vectors_are_arrays(spark: Any, uri: str) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    frame = spark.range(0, 4, 1, 1).select("id", array_to_vector(F.array(F.col("id") / 2)).alias("v"))
    for source in (frame, phalanx.stored(frame, uri), phalanx.stored(frame, uri)):
        (batch,) = phalanx.data(phalanx.replicated(source)).loader(batch_size=4)
        assert batch["id"].tolist() == [0, 1, 2, 3]
        assert batch["v"].tolist() == [[0.0], [0.5], [1.0], [1.5]]


def test_a_preparation_that_fails_leaves_no_block_and_no_index(spark: Any, uri: str, tmp_path: Path) -> None:
    def breaks(batches: Any) -> Any:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for batch in batches:
            yield batch
            if context.partitionId() == 1:
                raise RuntimeError("it broke")

    with pytest.raises(TrainingError, match="it broke"):
        prepare(spark, phalanx.stored(spark.range(0, 50, 1, 2).mapInArrow(breaks, "id long"), uri))
    assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file()] == [], "FEED-14, FEED-16"
    assert prepare(spark, phalanx.stored(spark.range(9), uri)).blocks, "the next run can write"


def test_what_a_task_left_that_was_repeated_is_removed(spark: Any, uri: str, tmp_path: Path) -> None:
    one = Preparation(spark, {"train": phalanx.stored(spark.range(9), uri)}, local_mode=True)
    folder = tmp_path / "kept" / one.folder
    folder.mkdir(parents=True)
    (folder / "0-777").write_bytes(b"of a task whose answer nobody waited for")
    index = Index.read(one.run()["train"])
    one.remove()
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        Path(file).name for file in index.files
    ), "FEED-16"


def test_other_columns_two_data_sets_in_one_place_and_strange_indexes_are_refused_before_any_job(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    prepare(spark, phalanx.stored(spark.range(5).selectExpr("id", "id / 2 as half"), uri))

    def refused(*frames: Any) -> str:
        data = {f"set{at}": phalanx.stored(frame, uri) for at, frame in enumerate(frames)}
        with pytest.raises(ValueError, match="set0") as caught:
            Preparation(spark, data, local_mode=True)
        return str(caught.value)

    said = refused(spark.range(5).selectExpr("id", "cast(id as float) as half"))
    assert "it has half double and the DataFrame has half float" in said, "FEED-15"
    assert "written 2" in said
    assert "in another order" in refused(spark.range(5).selectExpr("id / 2 as half", "id"))
    same = spark.range(3).selectExpr("id", "id / 2 as half")
    assert "'set0' and 'set1' are both stored at" in refused(same, same)
    if "::" in uri:  # such a file system reads a file once, and not when it was changed
        return
    index = tmp_path / "kept" / INDEX
    whole = index.read_text()
    for text, said in (
        (whole[: len(whole) // 2], "not an index of a data set"),
        (json.dumps({**json.loads(whole), "version": 9, "index": "another"}), "has version 9"),
    ):
        index.write_text(text)
        with pytest.raises(ValueError, match=said):
            Preparation(spark, {"train": phalanx.stored(same, uri)}, local_mode=True)


def forget_what_was_read() -> None:
    """fsspec keeps a file system for each thread's number, which a later thread may have, too."""
    from fsspec.implementations.cached import SimpleCacheFileSystem

    SimpleCacheFileSystem.clear_instance_cache()


def test_a_kept_block_that_was_changed_or_removed_is_an_error_that_names_its_file(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    index = prepare(spark, phalanx.stored(spark.range(0, 50, 1, 1), uri))
    (file,) = (tmp_path / "kept").glob("phalanx-data-*/0-*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    changed, short = (
        (r"came from its store with other bytes than were written to .*0-", "bytes before the end of a block")
        if "::" in uri
        else (r"'train' in .*0-.* can't be read on .*: block 0 has other bytes than were", "should have more")
    )
    for found, said in ((bytes(content), changed), (bytes(content[:100]), short)):
        file.write_bytes(found)
        forget_what_was_read()
        with pytest.raises(RuntimeError, match=said):  # FEED-6
            numbers(index, tmp_path / "rank")
    file.unlink()
    forget_what_was_read()
    with pytest.raises(
        RuntimeError, match=r"'train' in .*0-.* can't be read on .*the next run writes them again"
    ):
        numbers(index, tmp_path / "rank")


def test_a_store_that_is_no_place_is_refused_where_it_is_named(spark: Any) -> None:
    with pytest.raises(TypeError, match="uri has to be a str, not int"):
        phalanx.stored(spark.range(1), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="uri is empty"):
        phalanx.stored(spark.range(1), " ")
    assert is_data({"train": phalanx.stored(spark.range(1), "/x")})
    with pytest.raises(TypeError, match="has to be a Spark DataFrame, not Replicated"):
        Preparation(
            spark,
            {"train": phalanx.stored(phalanx.replicated(spark.range(1)), "/x")},
            local_mode=True,
        )
