"""The `Trainer` of transformers in ranks: functions and files, checkpoints after a kill, a step that fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx import DeepspeedTorchDistributor, TorchDistributor, TrainingError
from phalanx.integrations.accelerate import notebook_launcher
from support.tiers import whole
from trainer_file import STEPS, train

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("warm_imports")]
RANKS = 2
FILE = Path(__file__).with_name("trainer_file.py")


@pytest.fixture(scope="module")
def undisturbed(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a function leaves to which nothing happened."""
    result: dict[str, Any] = TorchDistributor(RANKS, local_mode=True, use_gpu=False).run(
        train, str(tmp_path_factory.mktemp("calm"))
    )
    return result


def test_a_rank_has_the_trainer_from_its_pool(
    undisturbed: dict[str, Any], is_warm: Callable[[], bool]
) -> None:
    assert undisturbed, "in a run that waited for the pool"
    assert TorchDistributor(RANKS, local_mode=True, use_gpu=False).run(is_warm)


def test_a_file_trains_as_a_function_does_and_reports_its_steps(
    ranks: Callable[..., TorchDistributor],
    tmp_path: Path,
    undisturbed: dict[str, Any],
) -> None:
    assert (undisturbed["ranks"], undisturbed["step"]) == (RANKS, STEPS)
    run = ranks().start(str(FILE), str(tmp_path / "out"))
    first, second = run.results(200)
    assert first == second == undisturbed, "to the bit"
    for rank in range(RANKS):
        assert run.reports[rank]["step"] == STEPS
        assert isinstance(run.reports[rank]["loss"], float)


def parsed() -> tuple[str, float, list[str]]:
    import sys
    from dataclasses import dataclass

    from transformers import HfArgumentParser

    @dataclass
    class Options:
        lr: float = 0.5

    # It looks for a file of arguments beside the program, whose name it has from sys.argv.
    options, more = HfArgumentParser(Options).parse_args_into_dataclasses(return_remaining_strings=True)
    return sys.argv[0], options.lr, more


@pytest.mark.parametrize("launcher", ["TorchDistributor", "DeepspeedTorchDistributor", "notebook_launcher"])
def test_a_function_reads_its_options_with_the_library_s_own_parser(launcher: str, over: str) -> None:
    local = over == "local"
    if launcher == "TorchDistributor":
        found = TorchDistributor(RANKS, local_mode=local, use_gpu=False).run(parsed)
    elif launcher == "DeepspeedTorchDistributor":
        found = DeepspeedTorchDistributor(1, RANKS, localMode=local, useGpu=False).run(parsed)
    else:
        found = notebook_launcher(parsed, num_processes=RANKS, local_mode=local, use_gpu=False)
    more = ["--deepspeed"] if launcher.startswith("Deepspeed") else []
    assert found == ("parsed", 0.5, more), "RANK-23"


@whole("another library")
def test_a_training_that_is_killed_in_an_epoch_goes_on_from_its_checkpoint_to_the_same_weights(
    ranks: Callable[..., TorchDistributor], tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    result = ranks(max_restarts=1, grace=5).run(train, str(tmp_path / "out"), "kill")
    assert (result["attempt"], result["step"]) == (1, STEPS)
    assert result["weights"] == undisturbed["weights"]


@whole("another library")
def test_a_step_that_fails_names_its_rank_and_its_line(
    ranks: Callable[..., TorchDistributor], tmp_path: Path
) -> None:
    with pytest.raises(TrainingError) as caught:
        ranks(grace=5).run(train, str(tmp_path / "out"), "fail")
    error = caught.value
    assert (error.kind, error.rank, error.exception_type) == ("exception", 1, "KeyError")
    assert isinstance(error.__cause__, KeyError)
    assert error.traceback is not None
    assert re.search(r'trainer_file\.py", line \d+, in on_step_begin\s+raise KeyError', error.traceback)
