"""`_train_on_dataframe` beside pyspark's own: the same function, the same DataFrame, the same batches bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx import TrainingError
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), pytest.mark.behaviour]


def trainer() -> Callable[[str, int], list[float]]:
    """The training function: nested, so that pyspark sends it by value."""

    def train(folder: str, workers: int) -> list[float]:
        """Trains by pyspark's own loader; keeps all batches, and returns the losses."""
        import os

        import torch
        from pyspark.ml.torch.distributor import _get_spark_partition_data_loader

        torch.manual_seed(0)
        loader = _get_spark_partition_data_loader(7, 3, num_workers=workers)
        model = torch.nn.Linear(2, 1, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches, losses = [], []
        for _ in range(2):
            for x, features, vector, y in loader:
                batches.append([x, features, vector, y])
                loss = (model(vector + features) - x[:, None] - y[:, None]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        torch.save(batches, os.path.join(folder, os.environ["RANK"]))
        return losses

    return train


def rows(spark: Any) -> Any:
    """Two partitions of five rows each: a float, an array of them, a vector, and an int."""
    from pyspark.ml.functions import array_to_vector

    frame = spark.range(0, 10, 1, 2).selectExpr(
        "cast(id as float) / 3 as x",
        "array(cast(id as float), 0.5f) as features",
        "array(id / 7D, -id / 9D) as doubles",
        "cast(id as int) as y",
    )
    return frame.select("x", "features", array_to_vector("doubles").alias("vector"), "y")


@pytest.fixture(scope="module")
def pysparks(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], Path]:
    """What pyspark's own class makes of it: rank 0's losses, and the folder with the ranks' batches."""
    from pyspark.ml.torch.distributor import TorchDistributor as Incumbent

    folder = tmp_path_factory.mktemp("pysparks")
    incumbent: Any = Incumbent(num_processes=2, local_mode=False, use_gpu=False)
    return incumbent._train_on_dataframe(trainer(), rows(spark), str(folder), 0), folder


@whole("pyspark's own class")
@pytest.mark.classic
def test_batches_and_losses_are_pysparks_bit_for_bit(
    stage: Any, spark: Any, pysparks: tuple[list[float], Path], tmp_path: Path
) -> None:
    import torch

    losses, folder = pysparks
    assert len(losses) == 6
    frame, train = rows(spark), trainer()
    for workers in (0, 1):
        assert stage._train_on_dataframe(train, frame, str(tmp_path), workers) == losses, "FEED-38"
        for rank in ("0", "1"):
            ours, theirs = torch.load(tmp_path / rank), torch.load(folder / rank)
            assert len(ours) == len(theirs) == 6
            for mine, other in zip(ours, theirs, strict=True):
                assert [column.dtype for column in mine] == [column.dtype for column in other], "FEED-26"
                assert all(map(torch.equal, mine, other)), "FEED-26"


def ids() -> list[int]:
    """The rank's rows, as many as its partition may have, once."""
    import os

    import phalanx
    from phalanx.distributor import _get_spark_partition_data_loader

    assert phalanx.data("eval").rows == 4
    assert os.path.exists(os.environ["PHALANX_PARTITION_INDEX"])
    return [i for [batch] in _get_spark_partition_data_loader(5, 2, 0) for i in batch.tolist()]


def taken(stage: Any, frame: Any) -> list[list[int]]:
    """The ranks' rows, beside a data set."""
    stage._train_on_dataframe(ids, frame, data={"eval": frame.sparkSession.range(4)})
    results: list[list[int]] = stage.last_run.results()
    return results


def test_each_rank_has_a_partition_beside_data_sets(stage: Any, spark: Any) -> None:
    assert taken(stage, spark.range(0, 10, 1, 2)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.classic
def test_a_dataframe_of_another_number_of_partitions_is_repartitioned(stage: Any, spark: Any) -> None:
    for partitions in (1, 5):
        parts = taken(stage, spark.range(0, 10, 1, partitions))
        assert sorted(parts[0] + parts[1]) == list(range(10))


@pytest.mark.remote
def test_another_number_of_partitions_is_found_out_by_the_tasks(stage: Any, spark: Any) -> None:
    with pytest.raises(
        TrainingError, match="the DataFrame has 1 partitions and the run has 2 tasks; repartition it to 2"
    ):
        taken(stage, spark.range(0, 10, 1, 1))


def test_an_empty_partition_and_rows_that_cannot_be_computed_are_the_runs_failure(
    stage: Any, spark: Any
) -> None:
    with pytest.raises(TrainingError, match="Empty Spark partition is not allowed"):
        taken(stage, spark.range(0, 10, 1, 2).where("id < 5"))
    number = "if(id < 1, id, cast(raise_error('no such number') as bigint)) as id"
    with pytest.raises(TrainingError, match="no such number"):
        taken(stage, spark.range(0, 10, 1, 2).selectExpr(number))
