"""Who runs what: the same whenever it runs again, and another for what only has the same name."""

from __future__ import annotations

import functools
import json
import os
import pwd
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx import _native
from phalanx.request.run_owner import check_given, owner_settings, user
from phalanx.request.train_object import Module
from support.places import PYTHON

pytestmark = pytest.mark.timeout(100)


def owner_of(train_object: object) -> dict[str, Any]:
    """As the ranks are told."""
    found: dict[str, Any] = json.loads(str(_job(train_object).checkpoint_owner))
    return found


def _job(train_object: object, **conf: str) -> _native.Job:
    settings = owner_settings(train_object) | conf
    return _native.Job(name="train", ranks=1, tasks=1, use_gpu=False, settings=settings)


def train() -> None: ...


class Trainer:
    def fit(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def plain() -> None: ...

    def __call__(self) -> None: ...


class OfCats(Trainer): ...


class OfDogs(Trainer): ...


def nested() -> Callable[[], None]:
    def train() -> None: ...

    return train


def test_a_functions_owner_is_its_module_and_its_qualified_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    me = {"user": pwd.getpwuid(os.geteuid()).pw_name, "kind": "module", "place": __name__, "line": 0}
    assert owner_of(train) == {**me, "name": "train"}
    for train_object, name in (
        (functools.partial(train), "train"),
        (functools.partial(functools.partial(train, 1), 2), "train"),
        (nested(), "nested.<locals>.train"),
        (Trainer(), "Trainer"),
        (Trainer, "Trainer"),
        (Trainer().fit, "Trainer.fit"),
        (OfCats().fit, "OfCats.fit"),
        (OfDogs().fit, "OfDogs.fit"),
        (OfCats.of_class, "OfCats.of_class"),
        (Trainer.plain, "Trainer.plain"),
    ):
        assert owner_of(train_object) == {**me, "name": name}
    assert owner_of(print) == {**me, "place": "builtins", "name": "print"}


def test_lambdas_are_told_apart_by_their_lines() -> None:
    one: Callable[[], int] = lambda: 1  # noqa: E731
    other: Callable[[], int] = lambda: 2  # noqa: E731
    assert owner_of(one)["line"] + 1 == owner_of(other)["line"]
    assert owner_of(one)["name"].endswith("<lambda>")
    assert owner_of(functools.partial(one)) == owner_of(one)


def test_a_file_is_where_it_is_and_a_module_what_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "train.py").write_text("")
    whole = owner_of(tmp_path / "cats" / "train.py")
    assert (whole["kind"], whole["place"], whole["name"]) == ("file", f"{tmp_path}/cats/train.py", "")
    for folder, path in ((tmp_path, "cats/train.py"), (tmp_path / "cats", "train.py")):
        monkeypatch.chdir(folder)
        assert owner_of(path) == whole
    assert owner_of("dogs/train.py")["place"] == "dogs/train.py", "one that the executors have"
    assert owner_of(os.fsdecode(b"/no/\xff.py"))["place"] == "/no/?.py"
    module = owner_of(Module("trainer.task", "digits"))
    assert (module["kind"], module["place"], module["name"]) == ("module", "trainer.task", "")


SCRIPT = """
def train(): pass
class Net:
    def fit(self): pass
if __name__ == "__main__":
    import json
    from phalanx.request.run_owner import owner_settings
    print(json.dumps([json.loads(owner_settings(fn)["phalanx.owner"]) for fn in (train, Net().fit)]))
"""


def owners_in(*command: str, cwd: Path, stdin: str = "", **environment: str) -> list[dict[str, Any]]:
    """The owners that SCRIPT tells when another Python runs it."""
    env = {name: value for name, value in os.environ.items() if name != "JPY_SESSION_NAME"}
    done = subprocess.run(
        [sys.executable, *command],
        env=env | {"PYTHONPATH": str(PYTHON)} | environment,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_script_that_is_edited_and_run_from_elsewhere_has_the_same_owner(tmp_path: Path) -> None:
    script = tmp_path / "trainer" / "task.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    function, method = owners_in(str(script), cwd=Path("/"))
    assert (function["kind"], function["place"], function["name"]) == ("file", str(script), "train")
    assert method == {**function, "name": "Net.fit"}
    script.write_text("# one line more\n" + SCRIPT)
    assert owners_in("trainer/task.py", cwd=tmp_path) == [function, method], "REQUEST-4"
    assert owners_in("-m", "cProfile", "-o", "profile", "trainer/task.py", cwd=tmp_path)[0] == function
    # As a module it is what another module imports it by.
    as_module = owners_in("-m", "trainer.task", cwd=tmp_path)[0]
    assert (as_module["kind"], as_module["place"]) == ("module", "trainer.task")


def test_what_is_typed_belongs_to_the_notebook_where_that_is_known(tmp_path: Path) -> None:
    def typed(**environment: str) -> dict[str, Any]:
        found = owners_in("-", cwd=tmp_path, stdin=SCRIPT, **environment)[0]
        return {key: found[key] for key in ("kind", "place", "name")}

    session = {"kind": "session", "place": "", "name": "train"}
    assert typed() == session
    assert typed(JPY_SESSION_NAME="console-1-2b6c4c5e") == session
    notebook = {"kind": "notebook", "place": "/home/ada/cats.ipynb", "name": "train"}
    assert typed(JPY_SESSION_NAME="/home/ada/cats.ipynb") == notebook
    # A script that a notebook starts is no notebook.
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    owners = owners_in(str(script), cwd=tmp_path, JPY_SESSION_NAME="/home/ada/cats.ipynb")
    assert owners[0]["kind"] == "file"


CELLS = """
    import json, sys, types
    {before}
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    shell.user_ns.update({names})
    for cell in {cells}:
        shell.run_cell(cell).raise_error()
"""
TELL = (
    "import json\nfrom phalanx.request.run_owner import owner_settings\n"
    "print(json.dumps([json.loads(owner_settings(train)['phalanx.owner'])]))"
)


def in_notebook(
    tmp_path: Path, cells: list[str], *, names: dict[str, str], before: str = ""
) -> dict[str, Any]:
    program = textwrap.dedent(CELLS).format(before=before, names=names, cells=[*cells, TELL])
    return owners_in("-c", program, cwd=tmp_path)[0]


def test_a_cell_that_is_run_again_in_another_kernel_has_the_same_owner(tmp_path: Path) -> None:
    code = {"__vsc_ipynb_file__": "/home/ada/cats.ipynb"}
    first = in_notebook(tmp_path, ["def train(): pass"], names=code)
    assert (first["kind"], first["place"]) == ("notebook", "/home/ada/cats.ipynb")
    later = in_notebook(tmp_path, ["x = 1", "# edited\ndef train(): return 1"], names=code)
    assert later == first, "REQUEST-4"
    assert in_notebook(tmp_path, ["def train(): pass"], names={})["kind"] == "session"


def test_databricks_notebooks_and_users_are_those_that_its_runtime_knows(tmp_path: Path) -> None:
    runtime = (
        "context = types.SimpleNamespace(notebookPath='/Users/ada@x.org/cats', user='ada@x.org')\n"
        "sys.modules['dbruntime'] = types.ModuleType('dbruntime')\n"
        "module = sys.modules['dbruntime.databricks_repl_context'] = types.ModuleType('of its context')\n"
        "module.get_context = lambda: context"
    )
    found = in_notebook(tmp_path, ["def train(): pass"], names={}, before=runtime)
    assert found["kind"] == "notebook"
    assert (found["place"], found["user"]) == ("/Users/ada@x.org/cats", "ada@x.org")


def test_the_user_is_whom_the_platform_knows_else_spark_else_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    of_system = pwd.getpwuid(os.geteuid()).pw_name
    context = types.SimpleNamespace(sparkUser=lambda: "of spark")
    classic: Any = types.SimpleNamespace(_jsparkSession=None, sparkContext=context)
    remote: Any = types.SimpleNamespace(_client=types.SimpleNamespace(_user_id="of connect"))
    strange: Any = types.SimpleNamespace()
    assert [user(spark) for spark in (None, classic, remote, strange)] == [
        of_system,
        "of spark",
        "of connect",
        of_system,
    ]
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    assert user(None) == "uid 4000000000", "a container's user needs no name"
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    assert user(classic) == "ada"


def test_the_caller_refuses_a_folder_that_it_was_given_and_that_is_anothers(tmp_path: Path) -> None:
    job = _job(train)
    folder = tmp_path / "train"
    given = {"spark.phalanx.checkpoint.directory": str(tmp_path)}
    check_given(job, given, {})
    assert not folder.exists()
    folder.mkdir()
    check_given(job, given, {})
    told = {**owner_of(train), "user": "bob"}
    (folder / "owner.json").write_text(json.dumps({"version": 1, "owner": told}))
    with pytest.raises(RuntimeError, match="run by bob, but this run is"):
        check_given(job, given, {})
    with pytest.raises(RuntimeError, match="run by bob"):
        check_given(job, {"spark.phalanx.checkpoint.directory": f"file://{tmp_path}"}, {})
    check_given(job, {}, {})
    check_given(job, given, {"PHALANX_CHECKPOINT_NAME": "train"})
    check_given(job, {"spark.phalanx.checkpoint.directory": "s3://no-such/place"}, {})
    named = _job(train, **{"spark.phalanx.checkpoint.name": "train"})
    assert named.checkpoint_owner is None
    check_given(named, given, {})
    (folder / "owner.json").write_text(json.dumps({"version": 1, "owner": owner_of(train)}))
    check_given(job, given, {})
