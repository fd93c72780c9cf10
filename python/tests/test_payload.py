"""What is sent to the ranks, and what an error says when it can't be."""

from __future__ import annotations

import functools
import io
import linecache
import pickle
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from phalanx.errors import UnpicklableError
from phalanx.rank.payload import Payload, PayloadError, merged_path
from phalanx.request.payload import file_payload, function_payload, module_payload
from phalanx.request.train_object import Module, name_of

pytestmark = pytest.mark.timeout(60)


def read(data: bytes, tmp_path: Path) -> Payload:
    path = tmp_path / "payload"
    path.write_bytes(data)
    return Payload(str(path))


def defined(text: str, **variables: Any) -> Any:
    """`train`, as `text` defines it in a notebook's `__main__` that has these variables."""
    space: dict[str, Any] = {"__name__": "__main__", **variables}
    exec(textwrap.dedent(text), space)
    return space["train"]


def complaint(fn: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UnpicklableError) as raised:
        function_payload(fn, args, kwargs, sys_path=[])
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, pickle.PicklingError)
    return str(raised.value)


def test_a_function_payload_reads_back(tmp_path: Path) -> None:
    payload = read(function_payload(lambda a, b=1: a + b, (1,), {"b": 2}, sys_path=["/x", "rel"]), tmp_path)
    assert (payload.kind, payload.name) == ("function", "<lambda>")
    assert payload.sys_path == ["/x", str(Path.cwd() / "rel")]
    fn, args, kwargs, names = payload.call()
    assert (fn(*args, **kwargs), names) == (3, {})


def test_a_file_payload_has_the_source_and_text_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")
    payload = read(file_payload(script, ["--lr", 0.1, None], sys_path=[]), tmp_path)
    assert (payload.kind, payload.name, payload.file_path) == ("file", "train.py", str(script))
    assert payload.arguments(str(tmp_path)) == ["--lr", "0.1", "None"]
    assert payload.source() == script.read_bytes()


def test_a_module_payload_has_a_name_and_nothing_of_the_callers_path(tmp_path: Path) -> None:
    payload = read(module_payload("trainer.task", ["--lr", 0.1]), tmp_path)
    assert (payload.kind, payload.name, payload.sys_path) == ("module", "trainer.task", [])
    assert payload.arguments(str(tmp_path)) == ["--lr", "0.1"]


def test_a_caller_that_is_not_python_says_no_python_and_no_path(tmp_path: Path) -> None:
    header = b'{"kind": "module", "name": "pkg.train", "args": ["--lr"], "results": "json"}'
    payload = read(b"phalanx payload 1\n" + header + b"\n", tmp_path)
    assert (payload.kind, payload.name, payload.arguments(str(tmp_path))) == ("module", "pkg.train", ["--lr"])
    assert (payload.results, payload.python, payload.sys_path) == ("json", "", [])
    for damaged in (
        b'{"kind": "function", "name": "f"}',  # byte code of which Python?
        b'{"kind": "program", "name": "f"}',
        b'{"kind": "module", "name": "m", "results": "xml"}',
    ):
        with pytest.raises(PayloadError, match="header is damaged"):
            read(b"phalanx payload 1\n" + damaged + b"\n", tmp_path)


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"phalanx payload 2\n{}\n"])
def test_what_is_no_payload_of_this_version_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(PayloadError, match="different versions of Phalanx"):
        read(data, tmp_path)
    with pytest.raises(PayloadError, match="header is damaged"):
        read(b"phalanx payload 1\n{}\n", tmp_path)


def test_nothing_is_unpickled_before_the_call_is_asked_for(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return int, ("no number",)

    payload = read(function_payload(print, (Bomb(),), {}, sys_path=[]), tmp_path)  # RANK-18
    with pytest.raises(PayloadError, match=r"print can't be read back on .*no number"):
        payload.call()


def test_missing_path_entries_go_where_the_caller_has_them() -> None:
    own = ["/py/zip", "/py/lib", "/py/site"]
    caller = ["/project", "/py/zip", "/py/lib", "/eggs", "/py/site", "/late"]
    assert merged_path(own, caller) == ["/project", "/py/zip", "/py/lib", "/eggs", "/py/site", "/late"]
    assert merged_path(own, ["/a", "/b"]) == [*own, "/a", "/b"], "nothing in common: behind everything"
    assert merged_path(own, []) == own


def test_names_of_what_runs() -> None:
    def train() -> None: ...

    class Callable:
        def __call__(self) -> None: ...

    assert name_of(train) == "train"
    assert name_of(functools.partial(functools.partial(train))) == "train"
    assert name_of(Callable()) == "Callable"
    assert name_of(Path("/a/train.py")) == "train.py"
    assert name_of("/a/tr\udce4in.py") == r"tr\udce4in.py", "its name has bytes that are no text"
    assert name_of(Module("trainer.task", run_name="digits")) == "digits"


def test_a_global_that_does_not_pickle_is_named() -> None:
    train = defined("def train():\n  with lock: pass", lock=threading.Lock())
    assert complaint(train) == (
        "train can't be sent to the ranks: its global variable 'lock' (a _thread.lock) doesn't pickle; "
        "make it inside train or pass what it is made from"
    )


def test_a_global_used_by_a_nested_function_is_named() -> None:
    train = defined(
        """
        def train():
            def step():
                return [lock for _ in range(3)]
            return step()
        """,
        lock=threading.Lock(),
    )
    assert "its global variable 'lock' (a _thread.lock)" in complaint(train)


def test_a_global_of_a_function_that_is_called_is_named_with_the_way_to_it() -> None:
    train = defined("def helper(): return lock\ndef train(): return helper()", lock=threading.Lock())
    assert "its global variable 'helper', global variable 'lock' (a _thread.lock)" in complaint(train)


def test_a_closure_variable_is_named() -> None:
    rows = (i for i in range(3))

    def train() -> None:
        next(rows)

    assert "its variable 'rows' (a generator) doesn't pickle" in complaint(train)


def test_arguments_are_named(tmp_path: Path) -> None:
    def train(lr: float, data: Any = None, *more: Any, **options: Any) -> None: ...

    rows = (i for i in range(3))
    assert "its argument 'data' (a generator)" in complaint(train, 0.1, rows), "REQUEST-2"
    assert "its argument number 3 (a generator)" in complaint(train, 0.1, 0, rows)
    assert "its argument 'rows' (a generator)" in complaint(train, 0.1, rows=rows)
    with open(tmp_path / "f", "w") as file:
        assert "its argument 'lr' (an open file)" in complaint(train, file)


def test_defaults_attributes_and_items_are_named() -> None:
    lock = threading.Lock()
    train = defined("def train(a, b=lock): pass", lock=lock)
    assert "its default of argument 'b' (a _thread.lock)" in complaint(train)

    class Config:
        def __init__(self) -> None:
            self.lock = lock

    train = defined("def train(): return config", config={"main": [1, Config()]})
    assert (
        "its global variable 'config', item 'main', item 1, attribute 'lock' (a _thread.lock)"
        in complaint(train)
    )
    assert "its argument number 1 (a _thread.lock)" in complaint(functools.partial(print, lock))


def test_an_object_without_a_culprit_inside_is_told_with_the_picklers_words() -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            raise RuntimeError("not today")

    assert "its argument 'a' (a " in complaint(lambda a: a, Refuses())


def test_a_large_argument_with_a_culprit_is_explained_in_time() -> None:
    rows = [{"i": i} for i in range(100_000)]
    assert "its argument 'data' (a list)" in complaint(lambda data: data, [*rows, threading.Lock()])


def test_loggers_modules_and_classes_of_main_are_fine(tmp_path: Path) -> None:
    train = defined(
        """
        import logging, json
        log = logging.getLogger("x")
        class Net:
            lr = 3
        def train():
            log.info("x")
            return json.dumps(Net().lr)
        """
    )
    assert read(function_payload(train, (), {}, sys_path=[]), tmp_path).call()[0]() == "3"


def test_sources_travel_once_and_within_limits(tmp_path: Path) -> None:
    def train() -> None: ...

    payload = read(function_payload(train, (train,), {}, sys_path=[]), tmp_path)
    assert list(payload.sources) == [__file__]
    assert payload.sources[__file__] == "".join(linecache.getlines(__file__))
    name = "<huge cell>"
    linecache.cache[name] = (2 << 20, None, ["#" * (2 << 20)], name)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def train(): pass", name, "exec"), space)
    assert name not in read(function_payload(space["train"], (), {}, sys_path=[]), tmp_path).sources
    del linecache.cache[name]


def test_the_callers_main_is_not_touched() -> None:
    before = dict(vars(sys.modules["__main__"]))
    function_payload(lambda: io.StringIO, (), {}, sys_path=sys.path)
    assert vars(sys.modules["__main__"]) == before
