"""The notebooks run as they stand, in a kernel of this environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.notebooks import executed as run_notebook
from support.notebooks import printed, stored
from support.places import ROOT
from support.tiers import whole

LEAST_ACCURACY = 0.95


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_notebook("01-quickstart.ipynb", tmp_path_factory.mktemp("notebook"))


@whole("a notebook, for a program")
@pytest.mark.timeout(600)
def test_output_of_every_rank_is_in_the_cell_that_ran_the_training(executed: Any) -> None:
    lines = printed(executed, "distributor.run(train").splitlines()
    for rank in (0, 1):
        epochs = [line for line in lines if line.startswith(f"[rank {rank}] epoch")]
        assert len(epochs) == 10, lines


@whole("a notebook, for a program")
def test_the_weights_that_came_back_know_the_digits(executed: Any) -> None:
    text = printed(executed, "test accuracy")
    assert float(text.split("test accuracy:")[1]) >= LEAST_ACCURACY, text


@whole("a notebook, for a program")
def test_every_ranks_result_is_there(executed: Any) -> None:
    text = printed(executed, "run.results()")
    assert "{'rank': 0, 'images': 899}" in text, text
    assert "{'rank': 1, 'images': 898}" in text, text


@whole("a notebook, for a program")
def test_the_failing_ranks_own_error_is_shown(executed: Any) -> None:
    text = printed(executed, "except TrainingError")
    assert "raised KeyError: 'labels'" in text, text
    assert 'raise KeyError("labels")' in text, "the traceback shows the cell's source: " + text
    assert "kind: exception, rank: 1, cause: KeyError('labels')" in text, text


@whole("another notebook")
@pytest.mark.timeout(300)
def test_a_notebook_for_accelerate_runs_on_spark_by_another_launcher(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    notebook = run_notebook("accelerate.ipynb", tmp_path_factory.mktemp("accelerate"))
    text = printed(notebook, "test accuracy")
    assert float(text.split("test accuracy:")[1]) >= LEAST_ACCURACY, text
    assert "[rank 1] process 1 of 2, bf16" in printed(notebook, "notebook_launcher(train"), notebook
    failure = printed(notebook, "except TrainingError")
    assert "rank 1" in failure, failure
    assert 'raise KeyError("labels")' in failure, failure


@whole("another notebook")
@pytest.mark.timeout(300)
def test_lightning_goes_on_after_a_kill_and_its_bar_is_in_the_cell(tmp_path: Path) -> None:
    notebook = run_notebook("lightning.ipynb", tmp_path)
    bar = printed(notebook, "calm = distributor.run(train, folder)")
    assert "Epoch 3" in bar, bar
    text = printed(notebook, 'calm["resumed"]')
    assert "resumed: False" in text, text
    assert text.count("'step': 116") == 2, text
    text = printed(notebook, "kill_in_epoch=2)")
    assert "[phalanx] restart 1 of 1: rank 1 (" in text, text
    assert "resumed: True the weights are the same: True" in text, text


@whole("another notebook")
@pytest.mark.timeout(300)
def test_the_same_functions_train_in_one_process_on_this_machine_and_on_the_cluster(tmp_path: Path) -> None:
    notebook = run_notebook("single-gpu-to-cluster.ipynb", tmp_path)
    for cell, where in (
        ("as alone:", "one process"),
        ("as local:", "local ranks"),
        ("as cluster:", "the cluster"),
        ("torch.jit.load", "the scripted model"),
    ):
        text = printed(notebook, cell)
        assert float(text.split(f"accuracy of {where}:")[1]) >= LEAST_ACCURACY, text
    rough = printed(notebook, "as cluster:")
    assert "[phalanx] restart 1 of 1: rank 1 (" in rough, rough
    assert "goes on after epoch 3" in rough, rough
    assert printed(notebook, "for run in (alone").count("FINISHED, losses of epochs [0, 1, 2, 3, 4, 5]") == 3


@whole("another notebook")
@pytest.mark.timeout(300)
def test_the_trainer_of_transformers_goes_on_after_a_kill(tmp_path: Path) -> None:
    notebook = run_notebook("transformers.ipynb", tmp_path)
    calm = printed(notebook, "calm = distributor.run(train, folder)")
    assert "'resumed from': None, 'steps': 276" in calm, calm
    assert calm.count("'step': 276") == 2, calm
    rough = printed(notebook, "kill_at_step=150)")
    assert "[phalanx] restart 1 of 1: rank 1 (" in rough, rough
    assert "'resumed from': 'checkpoint-120', 'steps': 276" in rough, rough
    accuracies = [text.split("'accuracy': ")[1].split("}")[0] for text in (calm, rough)]
    assert accuracies[0] == accuracies[1], "the weights are the same"
    assert float(accuracies[0]) >= 0.8


@whole("another notebook")
@pytest.mark.timeout(300)
def test_deepspeed_trains_with_zero_2(tmp_path: Path) -> None:
    text = printed(run_notebook("deepspeed.ipynb", tmp_path), "distributor.run(train")
    assert float(text.split("ZeRO 2: accuracy ")[1]) >= LEAST_ACCURACY, text
    assert "[rank 1] epoch 14: loss" in text, text


@whole("another notebook")
@pytest.mark.timeout(300)
def test_a_dataframe_trains_with_equal_steps_and_the_model_scores_another(tmp_path: Path) -> None:
    notebook = run_notebook("dataframe.ipynb", tmp_path)
    lines = printed(notebook, "distributor.run(train").splitlines()
    for rank in (0, 1):
        epochs = [line for line in lines if line.startswith(f"[rank {rank}] epoch")]
        assert len(epochs) == 10, lines
        assert all(": 7 steps, loss" in line for line in epochs), "455 rows, by 32 for each of two ranks"
    said = printed(notebook, "accuracy:")
    assert said.startswith("114 predictions for 114 tumours, accuracy: "), said
    assert float(said.split("accuracy: ")[1]) >= LEAST_ACCURACY, said


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb")))
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    for cell in stored(name).cells:
        if cell.cell_type == "code":
            assert not cell.outputs, cell.source
            assert cell.execution_count is None, cell.source
