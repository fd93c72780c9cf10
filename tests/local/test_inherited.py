"""What pyspark's class and module have beside `run`, for subclasses and recipes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from phalanx import TorchDistributor, distributor

pytestmark = pytest.mark.timeout(120)


def test_a_distributor_has_what_pysparks_has(spark: Any) -> None:
    from pyspark.ml.torch import distributor as theirs

    for local_mode in (True, False):
        arguments = {"num_processes": 2, "local_mode": local_mode, "use_gpu": False}
        ours, incumbent = TorchDistributor(**arguments), theirs.TorchDistributor(**arguments)
        assert set(vars(incumbent)) <= set(vars(ours)), "REQUEST-1"
        same = set(vars(incumbent)) - {"logger", "spark"}
        assert {n: vars(ours)[n] for n in same} == {n: vars(incumbent)[n] for n in same}, "REQUEST-1"
        assert ours._get_num_tasks() == incumbent._get_num_tasks()
    constants = [name for name in vars(theirs.TorchDistributor) if name.strip("_").isupper()]
    assert constants
    for name in constants:
        assert getattr(TorchDistributor, name) == getattr(theirs.TorchDistributor, name)
    for name in ("_get_conf", "_get_conf_boolean", "_get_gpus_owned", "_get_logger", "_get_resources"):
        assert callable(getattr(distributor, name))
        assert callable(getattr(theirs, name)), "it is one of pyspark's"


def test_a_subclass_may_say_more_of_itself(spark: Any) -> None:
    class Recipe(TorchDistributor):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.config = "a file"
            self.input_params = self._create_input_params()

        def _get_num_tasks(self) -> int:
            return super()._get_num_tasks() * 2

    made = Recipe(num_processes=2, use_gpu=False)
    assert made.num_tasks == 4
    assert made.input_params == {
        "num_processes": 2, "local_mode": True, "use_gpu": False, "num_tasks": 4, "config": "a file",
    }  # fmt: skip


def test_settings_are_read_as_pyspark_reads_them(spark: Any) -> None:
    from pyspark.ml.torch import distributor as theirs

    spark.conf.set("spark.test.flag", "True")
    for module in (distributor, theirs):
        assert module._get_conf(spark, "spark.test.none", "7") == "7"
        assert module._get_conf_boolean(spark, "spark.test.flag", "false") is True
        with pytest.raises(AssertionError):
            module._get_conf_boolean(spark, "spark.test.none", "perhaps")
    spark.conf.unset("spark.test.flag")


@pytest.mark.parametrize(
    ("addresses", "visible", "owned"),
    [
        (["0", "2"], None, ["0", "2"]),
        (["1"], "GPU-a,GPU-b", ["GPU-b"]),
        (["01"], None, None),
        (["x"], None, None),
    ],
)
def test_gpus_are_named_as_pyspark_names_them(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], visible: str | None, owned: list[str] | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = {"gpu": SimpleNamespace(addresses=addresses)}
    task: Any = SimpleNamespace(resources=lambda: gpu)
    session: Any = SimpleNamespace(conf={}, sparkContext=SimpleNamespace(resources=gpu))
    for context in (task, session):
        if owned is None:
            with pytest.raises(ValueError, match="not all in the correct format for CUDA_VISIBLE_DEVICES"):
                distributor._get_gpus_owned(context)
        else:
            assert distributor._get_gpus_owned(context) == owned
