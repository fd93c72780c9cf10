"""`Options`: one value for what a run is told, and one table from it to settings."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import re
import textwrap
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import Options, _native
from phalanx.options import _SETTINGS

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {field.name: field for field in dataclasses.fields(Options)}


def keywords(call: Any) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(call).parameters
    return {name: parameter for name, parameter in parameters.items() if name in FIELDS}


def test_the_constructor_and_run_local_take_every_option_as_it_is_declared() -> None:
    constructor, local = keywords(phalanx.TorchDistributor), keywords(phalanx.run_local)
    assert list(constructor) == list(FIELDS), "RUN-16"
    of_tasks = {"local_ranks", "gang", "min_processes", "task_cpus", "gpus_per_rank", "memory_per_rank"}
    assert local.keys() == FIELDS.keys() - of_tasks, "RUN-16: one host has one node"
    for found in (constructor, local):
        for name, parameter in found.items():
            assert parameter.default is None, (name, "RUN-16")
            # `str | Iterable[str]` is an `Iterable[str]`.
            declared = FIELDS[name].type.replace("str | Iterable[str]", "Iterable[str]")
            assert parameter.annotation == declared, (name, "RUN-16")


@pytest.mark.parametrize("call", [phalanx.TorchDistributor.__init__, phalanx.run_local])
def test_every_option_that_is_taken_is_passed_on(call: Any) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    [made] = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Options"
    ]
    passed = {keyword.arg: ast.unparse(keyword.value) for keyword in made.keywords}
    assert passed == {name: name for name in keywords(call)}, "RUN-16"


def test_each_option_that_is_a_setting_is_in_the_core_the_documents_and_scala() -> None:
    assert _SETTINGS.keys() == FIELDS.keys() - {"env", "mlflow"}, "RUN-16"
    documented = (ROOT / "docs" / "configuration.md").read_text()
    scala = (ROOT / "jvm/spark/src/main/scala/dev/phalanx/spark/Options.scala").read_text()
    for name, (key, _) in _SETTINGS.items():
        assert key in _native.setting_keys(), "RUN-16"
        assert f"`{key}`" in documented, "RUN-16"
        assert key in (Options.__doc__ or ""), (name, "RUN-16")
        if name == "progress":  # Scala draws nothing
            continue
        call = "with" + "".join(part.title() for part in name.split("_"))
        assert re.search(rf"\bdef {call}\([^=]*= having\(\s*\"{re.escape(key)}\"", scala), (call, "RUN-16")


def test_options_are_values_that_nobody_changes() -> None:
    ranks, env = [0, 1], {"A": "1"}
    options = Options(logs=ranks, restart_on=(kind for kind in ("hang", "signal")), env=env)
    ranks.append(2)
    env["A"] = "2"
    assert (options.logs, options.restart_on, options.env) == ((0, 1), ("hang", "signal"), {"A": "1"})
    assert options.settings == options.settings, "what was an iterator isn't used up"
    assert options.settings == {"spark.phalanx.logs": "0,1", "spark.phalanx.restartOn": "hang,signal"}
    assert options == Options(logs=(0, 1), restart_on=["hang", "signal"], env={"A": "1"})
    assert hash(options) == hash(copy.deepcopy(options))
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.warm = True  # type: ignore[misc]


def test_the_values_of_variables_are_not_shown() -> None:
    options = Options(max_restarts=2, env={"TOKEN": "hidden", "A": "b"})
    assert repr(options) == "Options(max_restarts=2, env=['A', 'TOKEN'])"
    for wrong, said in (
        (["A=hidden"], "not list"),
        ({"A": b"hidden"}, "'A' is a bytes"),
        ("hidden", "not str"),
    ):
        with pytest.raises(TypeError, match=said) as refused:
            Options(env=wrong)  # type: ignore[arg-type]
        assert "hidden" not in str(refused.value)


def test_changes_go_over_options_which_go_over_what_there_is() -> None:
    base = Options(max_restarts=1, grace=5, env={"A": "1", "B": "1"}, logs="all")
    more = Options(grace=7, env={"B": "2", "C": "2"}, mlflow=False)
    changed = base.with_changes(more, logs=None, env={"C": "3"}, warm=False)
    wanted = {"A": "1", "B": "2", "C": "3"}
    assert changed == Options(max_restarts=1, grace=7, env=wanted, mlflow=False, warm=False)
    assert changed.settings == {
        "spark.phalanx.warm.enabled": "false",
        "spark.phalanx.maxRestarts": "1",
        "spark.phalanx.grace": "7000ms",
    }
    assert base == Options(max_restarts=1, grace=5, env={"A": "1", "B": "1"}, logs="all")
    assert base.with_changes(env=None).env is None
    assert base.with_changes() == base


def test_what_is_no_option_is_named_with_the_nearest_that_is() -> None:
    with pytest.raises(TypeError, match="'max_restart' is not a run option; did you mean max_restarts"):
        Options().with_changes(max_restart=1)
    with pytest.raises(TypeError, match="'stages' is not a run option; the options are checkpoint_dir, "):
        Options().with_changes(stages=2)
    with pytest.raises(TypeError, match=r"options have to be phalanx\.Options, not dict"):
        Options().with_changes({"grace": 1})  # type: ignore[arg-type]
