"""What a model may return, and which columns that becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import phalanx
import pytest
import torch
from rows import numbers
from support.tiers import whole

pytestmark = pytest.mark.usefixtures("no_model_is_left")


def test_times_and_structs_are_outputs(session: Any) -> None:
    def make() -> Any:
        def model(x: torch.Tensor) -> Any:
            days = np.datetime64("2026-01-02") + x.long().numpy()
            return (
                days.astype("M8[us]"),
                days,
                [{"label": f"row {n:g}", "score": n, "other": 1} for n in x.tolist()],
            )

        return model

    scored = phalanx.predict(
        numbers(session, 3, 1),
        make,
        inputs="x",
        outputs="t timestamp, d date, s struct<score float, label string>",
    ).selectExpr("cast(t as long) as t", "string(d) as d", "s", "s.label")
    first = 1_767_312_000
    assert [tuple(row) for row in scored.collect()] == [
        (first + 86_400 * n, f"2026-01-0{2 + n}", (float(n), f"row {n}"), f"row {n}") for n in range(3)
    ], "SCORE-16"


def test_rows_that_come_as_dictionaries_are_outputs_by_their_names(session: Any) -> None:
    def make() -> Any:
        return lambda x: [
            {"text": f"row {row:g}", "score": row / 2} if row else {"score": 9.0} for row in x.tolist()
        ]

    frame = numbers(session, 3, 1)
    scored = phalanx.predict(frame, make, inputs="x", outputs="score double, text string")
    assert [(row.score, row.text) for row in scored.collect()] == [(9, None), (0.5, "row 1"), (1, "row 2")]
    for missing in ("label", "label string, score"):
        with pytest.raises(
            Exception, match=r"the model returned .*, and outputs= asks for label|output 'label'"
        ):
            phalanx.predict(frame, make, inputs="x", outputs=f"{missing} double").collect()


@whole("another library")
def test_a_pipeline_of_transformers_is_a_model(session: Any, tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    folder = str(tmp_path)

    def make() -> Any:
        import torch
        import transformers

        torch.manual_seed(1)
        config = transformers.BertConfig(
            vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        return transformers.pipeline(
            "text-classification",
            model=transformers.BertForSequenceClassification(config),
            tokenizer=transformers.BertTokenizer(f"{folder}/vocab.txt"),
        )

    texts = ["good", "bad", "good good bad"]
    frame = session.createDataFrame([(text,) for text in texts], "text string").coalesce(1)
    scored = phalanx.predict(frame, make, inputs="text", outputs="label string, score double")
    expected = make()(texts)
    assert [(row.label, pytest.approx(row.score, abs=1e-5)) for row in scored.collect()] == [
        (one["label"], one["score"]) for one in expected
    ]
