"""Whose the checkpoints of a run are, as its caller knows it: who runs what.

REQUEST-4 (same-owner): who runs a thing again is the same owner, also after an edit, in another kernel, and from
another working directory. What differs from one start to the next (a cell's number, a line of a function that has a
name, the arguments of a partial) is no part of it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import pwd
import sys
import types
from typing import TYPE_CHECKING, Any

from ..checkpoint.owner import check_early
from ..connect.client import is_remote
from ..plumbing.store import is_uri
from ..rank import contract
from .train_object import Module

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import SparkSession

    from .. import _native

_LAMBDA = "<lambda>"


def owner_settings(train_object: object, spark: SparkSession | None = None) -> dict[str, str]:
    """Who runs this, with Spark or without, for the core, which knows it beside a run's settings."""
    # The fields are those of `Owner` in rust/types/src/owner.rs, which makes paths the same for each run.
    owner = {"name": "", "line": 0, **_what(train_object), "user": user(spark)}
    # A path can have bytes that are no text.
    return {"phalanx.owner": json.dumps(owner, ensure_ascii=False).encode(errors="replace").decode()}


def check_given(job: _native.Job, given: Mapping[str, str], variables: Collection[str]) -> None:
    """Raises `RuntimeError` where the folder that this run was given for its checkpoints is another owner's, as far as
    the caller sees that. CHECKPOINT-8 has the rule, and ranks see the rest.

    `variables` are those that the ranks will have. A folder that is the cluster's for all runs is left to the ranks: of
    most runs nobody knows whether they save anything at all.
    """
    folder = given.get("spark.phalanx.checkpoint.directory")
    named = contract.ENV_CHECKPOINT_NAME in variables or contract.ENV_CHECKPOINT_NAME in os.environ
    if not folder or named or is_uri(folder):
        return
    if (told := job.checkpoint_owner) is not None:
        check_early(os.path.join(folder, job.checkpoint_name), json.loads(told))


def user(spark: SparkSession | None) -> str:
    """Who runs things here: whom the platform knows, else Spark, else the operating system."""
    hub = str(getattr(_databricks(), "user", None) or os.environ.get("JUPYTERHUB_USER") or "")
    return hub or _sparks_user(spark) or _systems_user()


def _sparks_user(spark: SparkSession | None) -> str:
    if spark is None:
        return ""
    with contextlib.suppress(Exception):  # a server's own kind of session
        return str(spark._client._user_id or "") if is_remote(spark) else str(spark.sparkContext.sparkUser())
    return ""


def _systems_user() -> str:
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # in a container, which needs no name for it
        return f"uid {number}"


def _what(train_object: object) -> dict[str, Any]:
    if isinstance(train_object, Module):
        return {"kind": "module", "place": train_object.name}
    if isinstance(train_object, (str, os.PathLike)):
        path = os.fsdecode(train_object)
        # One that isn't here is what it is called on the executors.
        return {"kind": "file", "place": os.path.abspath(path) if os.path.exists(path) else path}
    while isinstance(train_object, functools.partial):
        train_object = train_object.func
    named, name = train_object, ""
    if isinstance(train_object, types.MethodType):
        # The class of the instance, which may have inherited the method.
        of = train_object.__self__
        named, name = of if isinstance(of, type) else type(of), f".{train_object.__name__}"
    elif not hasattr(train_object, "__qualname__"):
        named = type(train_object)
    name = f"{getattr(named, '__qualname__', '')}{name}"
    code = getattr(train_object, "__code__", None)
    line = code.co_firstlineno if code is not None and name.endswith(_LAMBDA) else 0
    module = str(getattr(named, "__module__", None) or "builtins")
    if module != "__main__":
        return {"kind": "module", "place": module, "name": name, "line": line}
    # Under a profiler the process's `__main__` is that, and a function has its own.
    is_mains = getattr(train_object, "__module__", None) == "__main__"
    main = getattr(train_object, "__globals__", None) if is_mains else None
    return {**_of_main(main or vars(sys.modules["__main__"]), code), "name": name, "line": line}


def _of_main(main: Mapping[str, Any], code: types.CodeType | None) -> dict[str, str]:
    """What a `__main__` is: a module that `python -m` runs, a script, a notebook, or something typed."""
    spec, file = main.get("__spec__"), str(main.get("__file__") or "<none>")
    if spec is not None and spec.name != "__main__":
        return {"kind": "module", "place": str(spec.name).removesuffix(".__main__")}
    notebook = getattr(_databricks(), "notebookPath", None) or main.get("__vsc_ipynb_file__")
    if notebook is None and file.startswith("<"):
        # By Jupyter's server to a kernel, whose children inherit it. A console has a new name each time.
        told = os.environ.get("JPY_SESSION_NAME", "")
        notebook = told if os.path.splitext(told)[1] else None
    if notebook is not None:
        return {"kind": "notebook", "place": str(notebook)}
    # Shells that are scripts themselves (Livy's, Zeppelin's) run what is typed, which is in no file.
    if file.startswith("<") or (code is not None and code.co_filename.startswith("<")):
        return {"kind": "session", "place": ""}
    return {"kind": "file", "place": os.path.abspath(file)}


def _databricks() -> Any:
    """What Databricks' runtime knows of the notebook and its user; None elsewhere."""
    if "dbruntime" not in sys.modules:
        return None
    with contextlib.suppress(Exception):  # a runtime of another version
        return importlib.import_module("dbruntime.databricks_repl_context").get_context()
    return None
