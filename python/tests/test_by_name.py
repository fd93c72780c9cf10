"""Objects of `__main__` that pickle leaves as a name: what the ranks have of them, and what is refused at the call."""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from phalanx.errors import UnpicklableError
from support.one_rank import RankRun, as_main, sent

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(60)


def test_a_cached_function_is_its_function_and_its_size(run_rank: RunRank, tmp_path: Path) -> None:
    text = """
        import functools
        @functools.lru_cache(maxsize=7, typed=True)
        def fib(n):
            "the n-th number"
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        fib(9), fib.cache_clear, setattr(fib, "unit", "rabbits")
        @functools.cache
        def squared(n): return n * n
        def train():
            before = fib.cache_info()
            kept = fib.cache_parameters(), squared.cache_parameters()["maxsize"]
            told = fib.__name__, fib.__doc__, fib.__module__, fib.__wrapped__.__name__, fib.unit
            return fib(40), squared(5), squared(5), squared.cache_info().hits, tuple(before), *kept, told
    """
    end = run_rank(as_main(tmp_path, text))
    assert end.code == 0, end.err
    told = ("fib", "the n-th number", "__main__", "fib", "rabbits")
    assert end.result == (
        *(102334155, 25, 25, 1),
        *((0, 0, 7, 0), {"maxsize": 7, "typed": True}, None),
        told,
    ), "REQUEST-6"


def test_cached_functions_go_wherever_a_function_does(run_rank: RunRank, tmp_path: Path) -> None:
    text = """
        import functools, math
        class Net:
            @functools.lru_cache(maxsize=3)
            def width(self): return 1
            @staticmethod
            @functools.cache
            def depth(): return 2
            @property
            @functools.cache
            def size(self): return __class__.depth() + 1
        def counted():
            @functools.cache
            def fact(n): return 1 if n == 0 else n * fact(n - 1)
            return fact
        fact, root = counted(), functools.cache(math.sqrt)
        @functools.wraps(fact)
        def wrapped(n): return fact(n)
        half = functools.partial(fact, 4)
        def train(scale=functools.cache(lambda: 7)):
            net = Net()
            return net.width(), net.depth(), net.size, fact(5), root(36.0), wrapped(3), half(), scale()
    """
    end = run_rank(as_main(tmp_path, text))
    assert end.code == 0, end.err
    assert end.result == (1, 2, 3, 120, 6.0, 6, 24, 7)


def test_kinds_of_types_are_there_also_where_only_an_annotation_has_them(
    run_rank: RunRank, tmp_path: Path
) -> None:
    text = """
        import typing
        Rate = typing.NewType("Rate", float)
        P, T = typing.ParamSpec("P"), typing.TypeVar("T")
        class Of(typing.Generic[T]): pass
        if hasattr(typing, "TypeVarTuple"): Ts = typing.TypeVarTuple("Ts")
        if hasattr(typing, "TypeAliasType"): exec("type Rates = list[Rate]")
        else: Rates = typing.List[Rate]
        def step(rate: Rate, then: typing.Callable[P, T], all: Rates) -> Of[T]: return rate
        def train():
            main = __import__("sys").modules["__main__"]
            hints = typing.get_type_hints(step, include_extras=True)
            assert hints["rate"] is Rate is main.Rate, hints
            assert (Rate(3.0), Rate.__name__, Rate.__supertype__, Rate.__module__) == (3.0, "Rate", float, "__main__")
            assert (P.__name__, P.__module__, P.__bound__) == ("P", "__main__", None)
            assert P is main.P and typing.Callable[P, T] == hints["then"]
            if hasattr(typing, "TypeVarTuple"): assert (Ts.__name__, Ts.__module__) == ("Ts", "__main__")
            if hasattr(typing, "TypeAliasType"):
                assert Rates.__value__ == list[Rate] and (Rates.__name__, Rates.__module__) == ("Rates", "__main__")
            return step(1, None, [])
    """
    end = run_rank(as_main(tmp_path, text))
    assert end.code == 0, end.err
    assert end.result == 1


def test_an_object_that_names_itself_is_the_same_one_everywhere(run_rank: RunRank, tmp_path: Path) -> None:
    text = """
        import enum
        class _Missing:
            def __reduce__(self): return "MISSING"
        class _Pi(float):
            __slots__ = ()
            def __reduce__(self): return "PI"
        class Level(enum.IntFlag):
            LOW = 1
            HIGH = 2
            def __reduce_ex__(self, protocol): return self.name
        MISSING, PI, LOW = _Missing(), _Pi(3.5), Level.LOW
        MISSING.doc = "no value"
        def given(value=MISSING): return value is MISSING
        def train(kept=[MISSING, PI, LOW]):
            import pickle, sys
            main = sys.modules["__main__"]
            assert given() and kept[0] is MISSING is main.MISSING and MISSING.doc == "no value"
            assert kept[1] is PI is main.PI and PI == 3.5
            assert kept[2] is LOW is Level.LOW
            assert pickle.loads(pickle.dumps([MISSING, PI, LOW]))[0] is MISSING
            return pickle.dumps(MISSING)
    """
    end = run_rank(as_main(tmp_path, text))
    assert end.code == 0, end.err
    assert b"MISSING" in end.result


def test_what_a_rank_pickles_by_name_its_own_processes_find(run_rank: RunRank, tmp_path: Path) -> None:
    text = """
        import functools, multiprocessing
        @functools.cache
        def squared(n): return n * n
        def train():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return pool.map(squared, [1, 2, 3])
    """
    end = run_rank(as_main(tmp_path, text))
    assert (end.code, end.result) == (0, [1, 4, 9]), end.err


def test_those_of_a_module_that_goes_by_value_go_by_value(run_rank: RunRank) -> None:
    module = types.ModuleType("only_at_caller")
    exec(
        "import functools, typing\nRate = typing.NewType('Rate', int)\n@functools.cache\n"
        "def squared(n): return n * n\ndef train(n: Rate): return Rate(squared(n))",
        vars(module),
    )
    sys.modules["only_at_caller"] = module
    cloudpickle.register_pickle_by_value(module)
    try:
        payload = sent(module.train, 7)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules["only_at_caller"]
    end = run_rank(payload)
    assert (end.code, end.result) == (0, 49), end.err


def test_those_of_a_module_that_ranks_can_import_go_by_their_name(run_rank: RunRank) -> None:
    import fnmatch
    import typing

    cached = fnmatch._compile_pattern  # type: ignore[attr-defined]
    assert isinstance(cached, type(functools.cache(math.sqrt)))

    def train(*given: Any) -> bool:
        return given == (fnmatch._compile_pattern, typing.Any, math.sqrt)  # type: ignore[attr-defined]

    end = run_rank(sent(train, cached, typing.Any, math.sqrt))
    assert (end.code, end.result) == (0, True), end.err


def refusal(tmp_path: Path, text: str) -> str:
    """What the caller is told of `train` in a main script with this text."""
    with pytest.raises(AssertionError) as failed:
        as_main(tmp_path, text)
    return str(failed.value)


def test_what_can_not_be_made_anew_is_refused_at_the_call_with_its_name(tmp_path: Path) -> None:
    slotted = """
        class _Missing:
            __slots__ = ("doc",)
            def __reduce__(self): return "MISSING"
        MISSING = _Missing()
        def given(value): return value is MISSING
    """
    said = refusal(tmp_path, slotted + "\n        def train(): return given(3)")
    assert "UnpicklableError: train can't be sent to the ranks: its global variable 'given', global" in said
    assert (
        "global variable 'MISSING' (a _Missing) doesn't pickle: __main__.MISSING can only be sent by its name"
        in said
    ), "REQUEST-6"
    said = refusal(tmp_path, slotted + "\n        def train(value: MISSING): return 3")
    assert (
        "its annotation of 'value' (a _Missing) doesn't pickle: __main__.MISSING can only be sent by its name"
        in said
    )
    locked = """
        import functools, threading
        lock = threading.Lock()
        @functools.cache
        def held():
            with lock: return 1
        def train(): return held()
    """
    said = refusal(tmp_path, locked)
    assert (
        "its global variable 'held', attribute '__wrapped__', global variable 'lock' (a _thread.lock)" in said
    )


def test_a_cached_function_of_a_notebook_cell_is_sent_without_a_name(run_rank: RunRank) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("import functools\n@functools.cache\ndef one(): return 1\ndef train(): return one()", space)
    try:
        payload = sent(space["train"])
    except UnpicklableError as refused:
        pytest.fail(str(refused))
    assert run_rank(payload).result == 1
