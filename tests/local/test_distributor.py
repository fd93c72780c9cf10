"""The class on the outside: arguments, checks, log lines, and what a Run is given."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TorchDistributor, distributor
from phalanx.errors import TrainingError, UnpicklableError
from phalanx.rank.payload import Payload
from phalanx.request.run_owner import owner_settings
from phalanx.request.settings import Settings
from support.fakes import FakeNative, FakeRun

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, spark: Any) -> Iterator[FakeNative]:
    native = FakeNative()
    monkeypatch.setitem(sys.modules, "phalanx._native", native)
    monkeypatch.setattr(phalanx, "_native", native, raising=False)
    monkeypatch.setattr(distributor, "_new_run", FakeRun)
    FakeRun.made.clear()
    FakeRun.outcome = None
    yield native
    FakeRun.made.clear()


def local(**changes: Any) -> TorchDistributor:
    return TorchDistributor(**{"num_processes": 2, "use_gpu": False, **changes})


def test_the_signature_is_pysparks() -> None:
    from pyspark.ml.torch.distributor import TorchDistributor as Incumbent

    def shape(kind: type) -> list[tuple[str, object]]:
        parameters = inspect.signature(kind).parameters.values()
        return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert shape(TorchDistributor) == shape(Incumbent), "RUN-1"
    assert str(inspect.signature(TorchDistributor)).startswith("(num_processes: 'int | tuple[int, int]' = 1,")
    for method in ("run", "_train_on_dataframe"):
        ours, theirs = (inspect.signature(getattr(kind, method)) for kind in (TorchDistributor, Incumbent))
        assert [p.kind for p in ours.parameters.values()] == [p.kind for p in theirs.parameters.values()]
        assert next(iter(list(ours.parameters)[1:])) == next(iter(list(theirs.parameters)[1:]))
    from pyspark.ml.torch.distributor import _get_spark_partition_data_loader as theirs_loader

    ours_loader = distributor._get_spark_partition_data_loader
    assert list(inspect.signature(ours_loader).parameters) == list(
        inspect.signature(theirs_loader).parameters
    )


def test_without_a_session_there_is_no_distributor() -> None:
    script = """
from phalanx import TorchDistributor
try:
    TorchDistributor(use_gpu=False)
except RuntimeError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert "TorchDistributor needs an active SparkSession" in done.stdout, done.stderr


def test_num_workers_is_an_alias_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="use num_processes") as caught:
        made = TorchDistributor(num_workers=4, use_gpu=False)
    assert made.num_processes == 4
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="give one of them"):
        TorchDistributor(1, num_workers=4, use_gpu=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(TorchDistributor(use_gpu=False).num_processes) is int


def test_bad_arguments_raise_at_once() -> None:
    with pytest.raises(ValueError, match="num_processes has to be a positive integer"):
        local(num_processes=0)
    with pytest.raises(TypeError, match="has to be an int"):
        local(num_processes="2")
    with pytest.raises(RuntimeError, match="GPUs were unable to be found on the driver"):
        local(use_gpu=True)
    with pytest.raises(RuntimeError, match="was unset, so gpu usage is unavailable"):
        local(use_gpu=True, local_mode=False)


def test_a_function_is_handed_over_and_rank_0s_value_comes_back(
    fakes: FakeNative, tmp_path: Path, spark: Any
) -> None:
    def train(lr: float, *, epochs: int) -> None: ...

    FakeRun.outcome = "model"
    made = local()
    assert made.run(train, 0.1, epochs=3) == "model"
    (run,) = FakeRun.made
    assert made.last_run is run  # type: ignore[comparison-overlap]
    fields = run.fields
    assert sorted(fields) == ["inputs", "lease", "local_mode", "request", "spark", "tracked"]
    assert (fields["local_mode"], fields["lease"].gpus) == (True, [])
    request = fields["request"]
    assert (request.job, request.rows, fields["inputs"], fields["tracked"]) == ("job 1", None, None, [])
    assert isinstance(request.settings, Settings)
    assert request.payload.packed == b"", "REQUEST-5"
    (tmp_path / "payload").write_bytes(run.payload)
    payload = Payload(str(tmp_path / "payload"))
    assert payload.call()[1:3] == ((0.1,), {"epochs": 3})
    assert set(payload.sys_path) >= {str(Path(p).resolve()) for p in sys.path if p and Path(p).is_dir()} - {
        ""
    }
    assert fakes.jobs == [
        {
            "name": "train",
            "ranks": 2,
            "tasks": 1,
            "use_gpu": False,
            "settings": request.settings.values
            | {"phalanx.localMode": "true"}
            | owner_settings(train, fields["spark"]),
        }
    ]


def test_a_file_is_handed_over_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    for path in (str(script), script):
        assert local().run(path, "--lr", 0.1) is None
        (tmp_path / "payload").write_bytes(FakeRun.made[-1].payload)
        payload = Payload(str(tmp_path / "payload"))
        assert (payload.kind, payload.arguments(str(tmp_path))) == ("file", ["--lr", "0.1"])
    with pytest.raises(ValueError, match="key-word"):
        local().run(str(script), lr=1)
    with pytest.raises(FileNotFoundError):
        local().run(str(tmp_path / "none.py"))


def test_a_file_that_only_the_executors_have_is_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(distributor.preflight, "check_slots", lambda *_: None)
    with caplog.at_level(logging.INFO, "TorchDistributor"):
        local(local_mode=False).run("/only/there/train.py", 1)
    (tmp_path / "payload").write_bytes(FakeRun.made[-1].payload)
    payload = Payload(str(tmp_path / "payload"))
    assert (payload.kind, payload.file_path) == ("file", "/only/there/train.py")
    assert payload.arguments(str(tmp_path)) == ["1"]
    assert "/only/there/train.py is not here; the ranks take what is there on their hosts" in caplog.text
    with pytest.raises(FileNotFoundError):
        local().run("/only/there/train.py")


def test_what_can_not_be_sent_raises_before_anything_starts(fakes: FakeNative) -> None:
    with pytest.raises(UnpicklableError, match="'rows' \\(a generator\\)"):
        local().run(lambda rows: rows, rows=(i for i in range(3)))
    assert (fakes.jobs, FakeRun.made) == ([], []), "RUN-2"


def test_log_lines_are_pysparks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "TorchDistributor"):
        local().run(print)
        local(num_processes=1, local_mode=False).run(print)
        local().start(print)
        FakeRun.outcome = TrainingError("failed")
        with pytest.raises(TrainingError):
            local().run(print)
    lines = [r.message for r in caplog.records if r.name == "TorchDistributor"]
    # A session that has only just started has no slot yet, which is told, too.
    assert [line for line in lines if not line.startswith("Waiting for executors")] == [
        "Started local training with 2 processes",
        "Finished local training with 2 processes",
        "Started distributed training with 1 executor processes",
        "Finished distributed training with 1 executor processes",
        "Started local training with 2 processes",
        "Started local training with 2 processes",
    ]


def test_start_returns_the_run_that_it_started() -> None:
    made = local()
    run = made.start(print, "x")
    assert run is made.last_run
    assert run is FakeRun.made[0]  # type: ignore[comparison-overlap]


def test_the_cluster_is_checked_before_a_distributed_run(spark: Any, fakes: FakeNative) -> None:
    with pytest.raises(RuntimeError, match=r"needs 2 task slots at once, but with master local\[1\]"):
        local(local_mode=False).run(print)
    spark.conf.set("spark.phalanx.grace", "a while")
    try:
        with pytest.raises(ValueError, match=r'spark\.phalanx\.grace is "a while"'):
            local().run(print)
    finally:
        spark.conf.unset("spark.phalanx.grace")
    spark.conf.set("spark.phalanx.encryption", "required")
    spark.conf.set("my.override", "true")
    try:
        with pytest.raises(ValueError, match="set only one of them"):
            local(num_processes=1, local_mode=False, _ssl_conf="my.override").run(print)
        local(num_processes=1, local_mode=False).run(print)
        local().run(print)
    finally:
        spark.conf.unset("spark.phalanx.encryption")
        spark.conf.unset("my.override")
    assert len(FakeRun.made) == 2


def test_a_bad_setting_that_an_argument_overrides_is_nobodys_trouble(spark: Any) -> None:
    spark.conf.set("spark.phalanx.maxRestarts", "many")
    try:
        for local_mode in (True, False):
            local(num_processes=1, local_mode=local_mode, max_restarts=1).run(print)
            with pytest.raises(ValueError, match=r'spark\.phalanx\.maxRestarts is "many"'):
                local(num_processes=1, local_mode=local_mode).run(print)
    finally:
        spark.conf.unset("spark.phalanx.maxRestarts")
    assert len(FakeRun.made) == 2


def test_a_misspelt_setting_is_warned_about(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    spark.conf.set("spark.phalanx.jointimeout", "1s")
    try:
        with caplog.at_level(logging.WARNING, "phalanx"):
            local().run(print)
    finally:
        spark.conf.unset("spark.phalanx.jointimeout")
    assert "did you mean spark.phalanx.joinTimeout?" in caplog.text


def test_a_dataframe_has_a_partition_for_every_task(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match=r"requires setting TorchDistributor\.local_mode to False"):
        local()._train_on_dataframe(print, spark.range(3))
    made = local(num_processes=1, local_mode=False)
    with pytest.raises(ValueError, match="field of type string: the column 's'"):
        made._train_on_dataframe(print, spark.sql("select 'a' as s"))  # FEED-30
    assert not FakeRun.made
    FakeRun.outcome = 7
    one, unknown = spark.range(0, 9, 1, 1), spark.range(9).groupBy("id").count()
    for frame in (one, unknown):
        assert made._train_on_dataframe(print, frame, "x") == 7
        rows = FakeRun.made[-1].fields["request"].rows
        assert (rows.frame is frame, rows.data_set) == (True, None)
    caplog.clear()
    with caplog.at_level(logging.INFO, "TorchDistributor"):
        assert made._train_on_dataframe(print, spark.range(0, 9, 1, 3)) == 7
    assert FakeRun.made[-1].fields["request"].rows.frame.rdd.getNumPartitions() == 1
    assert "it has 3 partitions and the run has 1 tasks" in caplog.text


def test_with_options_is_a_copy_that_changes_nothing_of_its_origin(spark: Any) -> None:
    made = local(max_restarts=1, env={"A": "1"}, logs="errors")
    made.run(print)
    other = made.with_options(phalanx.Options(grace=5), logs=None, env={"B": "2"})
    assert type(other) is TorchDistributor
    assert other.options == phalanx.Options(max_restarts=1, grace=5, env={"A": "1", "B": "2"})
    assert (other.last_run, other.num_processes, other.use_gpu) == (None, 2, False)
    assert made.options == phalanx.Options(max_restarts=1, env={"A": "1"}, logs="errors")
    assert made.last_run is not None
    other.run(print)
    request = FakeRun.made[-1].fields["request"]
    assert request.settings.values["spark.phalanx.grace"] == "5000ms"
    assert "options" not in other.input_params, "RUN-1"
    with pytest.raises(TypeError, match="'log' is not a run option; did you mean logs"):
        made.with_options(log="off")


def test_a_subclass_stays_one_with_what_it_has_of_its_own() -> None:
    class Named(TorchDistributor):
        def __init__(self, name: str) -> None:
            super().__init__(num_processes=2, use_gpu=False)
            self.name = name

    other = Named("a").with_options(grace=1)
    assert (type(other), other.name, other.options.grace) == (Named, "a", 1)


def test_with_data_gives_runs_the_data_sets_that_are_named(spark: Any) -> None:
    one, two = spark.range(3), phalanx.replicated(spark.range(4))
    made = local()
    both = made.with_data(one=one).with_data({"two": two})
    both.run(print, data="an argument")
    inputs = FakeRun.made[-1].fields["inputs"]
    assert list(inputs._given) == ["one", "two"]
    both.with_options(grace=1).run(print, data={"three": one})
    assert list(FakeRun.made[-1].fields["inputs"]._given) == ["one", "two", "three"]
    made.run(print)
    assert FakeRun.made[-1].fields["inputs"] is None
    for wrong, said in (
        ({"a": [1, 2]}, "the data set 'a' has to be a Spark DataFrame, not list"),
        ({1: one}, "the name of a data set has to be a str, not int"),
        ([one], "data sets have to be a mapping of names to DataFrames, not list"),
    ):
        with pytest.raises(TypeError, match=said):
            made.with_data(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the data set 'one' is given twice"):
        both.with_data(one=one)
    with pytest.raises(ValueError, match="the data set 'one' is given twice"):
        both.run(print, data={"one": one})


def test_rows_that_are_not_sparks_go_to_the_function_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    monkeypatch.setattr(distributor, "_warned_of_data", False)
    rows = pd.DataFrame({"a": [1, 2]})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for data in ("a path", rows, {"train": rows}):
            local().run(print, data=data)
    said = [str(warning.message) for warning in told if warning.category is UserWarning]
    assert len(said) == 1, said
    assert said[0].startswith(
        "run(data=...) is passed to the function as an argument, because it is a pandas."
    )
    assert told[0].filename == __file__
    (tmp_path / "payload").write_bytes(FakeRun.made[1].payload)
    assert Payload(str(tmp_path / "payload")).call()[2]["data"].equals(rows)


def test_the_logger_prints_only_where_nobody_configured_logging() -> None:
    script = """
import logging, sys
from phalanx.distributor import _get_logger
if sys.argv[1:]:
    logging.basicConfig(stream=sys.stdout, format="root %(message)s")
_get_logger("TorchDistributor").info("hello")
_get_logger("TorchDistributor").info("again")
"""
    run = [sys.executable, "-c", script]
    plain = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (plain.stdout, plain.stderr) == ("", "hello\nagain\n")
    configured = subprocess.run([*run, "configured"], capture_output=True, text=True, timeout=60)
    assert (configured.stdout, configured.stderr) == ("root hello\nroot again\n", "")


def test_importing_starts_no_thread_and_configures_no_logger() -> None:
    script = """
import logging, threading
import phalanx, phalanx.distributor, phalanx.request.settings, phalanx.request.preflight
print(threading.active_count(), logging.getLogger().handlers, logging.getLogger("TorchDistributor").handlers)
import sys
print([m for m in ("pyspark", "torch", "pyarrow", "cloudpickle") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "1 [] []\n[]\n", done.stderr
