"""`phalanx.predict` of a stream's batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import phalanx
import pytest
from rows import numbers
from support.tiers import whole

pytestmark = [pytest.mark.usefixtures("no_model_is_left"), pytest.mark.timeout(200)]


@whole("another kind of query")
def test_each_batch_of_a_stream_is_scored_and_written_once(session: Any, tmp_path: Path) -> None:
    rows, scores = str(tmp_path / "rows"), str(tmp_path / "scores")
    for first in range(3):
        numbers(session, 40, 2).selectExpr(f"id + {first * 40} as id", f"x + {first * 40} as x").write.mode(
            "append"
        ).parquet(rows)
    model, sizes = models.Twice(), []

    def write(batch: Any, number: int) -> None:
        scored = phalanx.predict(batch, model, inputs="x", outputs="y double", batch_size=16)
        scored.write.mode("append").parquet(scores)
        sizes.append(batch.count())

    stream = session.readStream.schema("id bigint, x double").option("maxFilesPerTrigger", 2).parquet(rows)
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "places"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len(sizes) > 1, "several batches"
    found = session.read.parquet(scores).orderBy("id").collect()
    assert [(row.id, row.y) for row in found] == [(row, 2 * row) for row in range(120)], "SCORE-12"
