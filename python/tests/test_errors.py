"""`TrainingError`, the exception that travels in it, and the table of kinds."""

from __future__ import annotations

import base64
import copy
import importlib
import json
import pickle
import re
import threading
from typing import Any

import cloudpickle
import phalanx
import pytest
from phalanx import _native
from phalanx.errors import RankOutcome, TrainingError
from phalanx.rank.chained_exception import ChainedException
from phalanx.rank.error_record import MAX_PICKLE_BYTES, is_peer_loss, pickled, without_own_frames
from phalanx.results import UnavailableResult
from support.places import CONTRACT, ROOT

pytestmark = pytest.mark.timeout(60)


def failure(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "exception",
        "rank": 3,
        "host": "10.0.0.7",
        "message": "rank 3 (10.0.0.7) raised ValueError: lr",
        "exit_code": None,
        "signal": None,
        "exception_type": "ValueError",
        "traceback": "Traceback ...",
        "last_lines": ["step 7"],
        "log_path": "/tmp/r3.log",
        "pickle": "",
        "ranks": [{"rank": 0, "host": "a", "state": "stopped", "idle_seconds": None}],
        **changes,
    }


def sent(exc: BaseException) -> str:
    return base64.b64encode(cloudpickle.dumps(exc)).decode()


def test_the_error_is_the_rendered_story_with_its_fields() -> None:
    error = TrainingError.from_failure(failure(), "the story")
    assert isinstance(error, RuntimeError)
    assert str(error) == "the story"
    assert (error.kind, error.rank, error.host, error.exit_code) == ("exception", 3, "10.0.0.7", None)
    assert error.message == "rank 3 (10.0.0.7) raised ValueError: lr"
    assert (error.exception_type, error.last_lines, error.log_path) == (
        "ValueError",
        ["step 7"],
        "/tmp/r3.log",
    )
    assert error.ranks == [RankOutcome(0, "a", "stopped", None)]
    assert error.__cause__ is None


def test_the_ranks_own_exception_is_the_cause() -> None:
    error = TrainingError.from_failure(failure(pickle=sent(ValueError("lr"))), "x")
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize(
    "data",
    [
        "!",
        base64.b64encode(b"junk").decode(),
        sent(ValueError())[:-9],
        base64.b64encode(b"cnowhere\nX\n.").decode(),
    ],
)
def test_a_cause_that_does_not_unpickle_is_left_out(data: str) -> None:
    assert TrainingError.from_failure(failure(pickle=data), "x").__cause__ is None, "RUN-3"
    no_exception = base64.b64encode(pickle.dumps(3)).decode()
    assert TrainingError.from_failure(failure(pickle=no_exception), "x").__cause__ is None


def test_the_error_pickles_with_its_cause() -> None:
    error = TrainingError.from_failure(failure(pickle=sent(ValueError("lr"))), "the story")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.kind, again.ranks) == ("the story", "exception", error.ranks)
    assert isinstance(again.__cause__, ValueError)
    assert str(pickle.loads(pickle.dumps(TrainingError("plain")))) == "plain"


class Loss(float):
    """A value of a class of the caller's."""


@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("made", [TrainingError.from_failure, lambda _, text: TrainingError(text)])
def test_the_error_keeps_all_that_it_tells_when_it_is_pickled_or_copied(again: Any, made: Any) -> None:
    error = made(failure(pickle=sent(ValueError("lr"))), "the story")
    error.results = [Loss(0.5), {"step": 7}, UnavailableResult("rank 2 left no result"), lambda: 4]
    error.message, error.run_name, error.__notes__ = "another", "digits", ["a note"]
    other = again(error)
    assert type(other) is type(error)
    assert other.results[-1]() == 4
    error.results[-1] = other.results[-1]
    kept = vars(error)
    assert {name: vars(other)[name] for name in kept} == kept, "RUN-3"
    assert type(other.results[0]) is Loss
    assert str(other) == "the story"
    assert (str(other.__cause__), type(other.__cause__)) == (str(error.__cause__), type(error.__cause__))


def test_an_error_goes_to_other_processes_whatever_the_results_are() -> None:
    error = TrainingError.from_failure(failure(), "the story")
    error.results = [threading.Lock(), 3]
    data = pickle.dumps(error)
    again = pickle.loads(data)
    assert str(again.results[0]).startswith(
        "UnavailableResult(\"rank 0: its result (a _thread.lock) doesn't pickle: "
    )
    assert again.results[1] == 3
    assert copy.copy(error).results == error.results, "a copy has the objects themselves"
    error.results = [Loss(1.0)]
    data = pickle.dumps(error).replace(b"Loss", b"Lost")
    (lost,) = pickle.loads(data).results
    assert "rank 0: its result can't be read back here: AttributeError: " in lost.reason, "RUN-3"


def test_an_exceptions_chain_survives_pickling() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise ValueError("second") from first
    except ValueError as caught:
        exc = caught
    again = pickle.loads(pickle.dumps(ChainedException(exc)))
    assert isinstance(again, ValueError)
    assert isinstance(again.__cause__, KeyError)
    assert again.__suppress_context__


def test_a_chain_that_goes_round_or_does_not_pickle_ends_somewhere() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    again = pickle.loads(base64.b64decode(pickled(one)))
    assert str(again.__context__) == "two"
    one = ValueError("one")
    one.__cause__ = RuntimeError(iter(()), (i for i in range(3)))
    again = pickle.loads(base64.b64decode(pickled(one)))
    assert (str(again), again.__cause__) == ("one", None)


def test_a_large_exception_is_not_pickled() -> None:
    assert pickled(ValueError("x" * MAX_PICKLE_BYTES)) == ""
    assert pickled(ValueError("x" * (MAX_PICKLE_BYTES // 2))) != ""


def test_peer_loss_is_told_from_a_ranks_own_failure() -> None:
    gloo = RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: "
        "Connection reset by peer. This is typically caused by a remote worker hanging"
    )
    assert is_peer_loss(gloo)
    assert is_peer_loss(ConnectionResetError())
    assert is_peer_loss(BrokenPipeError())
    assert not is_peer_loss(EOFError())
    assert not is_peer_loss(RuntimeError("CUDA out of memory"))


def test_a_rank_that_words_its_failure_as_a_lost_peers_has_failed_itself() -> None:
    for text in (
        "s3://rows/part-7: Connection reset by peer",
        "Connection closed by peer [10.0.0.3]:29500",
        "ncclRemoteError",
        "the rows are in /data/gloo/transport/tcp",
    ):
        assert not is_peer_loss(RuntimeError(text)), text


def test_peer_loss_is_found_behind_another_exception() -> None:
    outer = ValueError("could not save")
    outer.__context__ = ConnectionResetError()
    assert is_peer_loss(outer)
    outer.__context__.__context__ = outer
    assert is_peer_loss(outer)


def test_peer_loss_knows_torchs_classes() -> None:
    import torch.distributed as dist

    assert is_peer_loss(dist.DistNetworkError("gone"))
    assert is_peer_loss(dist.DistBackendError("NCCL error"))
    assert not is_peer_loss(dist.DistStoreError("wait timeout"))


def test_own_frames_are_cut_from_the_start_only() -> None:
    with pytest.raises(ValueError, match="mine") as raised:
        raise ValueError("mine")
    trace = raised.value.__traceback__
    assert without_own_frames(trace) is trace
    assert without_own_frames(None) is None


def test_the_table_of_kinds_is_the_cores_and_pythons() -> None:
    table = json.loads((CONTRACT / "errors.json").read_text())["kinds"]
    source = (ROOT / "rust/types/src/failure_kind.rs").read_text()
    body = source[source.index("pub fn name(self)") :]
    names = re.findall(r'FailureKind::\w+ => "(\w+)"', body[: body.index("\n    }\n")])
    assert [row["kind"] for row in table] == names
    for row in table:
        module, _, name = row["python"]["class"].rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        error = kind.from_failure(failure(kind=row["kind"]), row["meaning"])
        base_module, _, base = row["python"]["base"].rpartition(".")
        assert isinstance(error, getattr(importlib.import_module(base_module), base))
        assert error.kind == row["kind"]
        assert row["meaning"].endswith(".")


def test_every_kind_of_error_of_the_core_is_raised_as_the_class_that_the_table_names() -> None:
    for row in json.loads((CONTRACT / "errors.json").read_text())["errors"]:
        module, _, name = row["python"]["class"].rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        with pytest.raises(kind, match="why") as raised:
            _native.fail_for_test(row["kind"], "why")
        assert raised.type is kind, "TYPES-3"
        assert raised.value.kind == row["kind"]


def test_the_tables_fields_are_the_cores_and_pythons() -> None:
    table = json.loads((CONTRACT / "errors.json").read_text())
    for file, name, fields, only_here in (
        ("failure.rs", "Failure", "fields", {"pickle"}),
        ("rank_outcome.rs", "Written", "rank_fields", set()),
    ):
        source = (ROOT / "rust/types/src" / file).read_text()
        body = source[source.index(f"struct {name} {{") :]
        of_core = re.findall(r"^    (?:pub )?(\w+): ", body[: body.index("\n}\n")], re.MULTILINE)
        assert [field for field in of_core if field not in only_here] == table[fields]
    assert list(RankOutcome._fields) == table["rank_fields"]
    assert set(table["fields"]) <= set(vars(TrainingError.from_failure(failure(), "text")))


def test_the_package_offers_its_names_lazily() -> None:
    assert set(phalanx.__all__) <= set(dir(phalanx))
    assert phalanx.TrainingError is TrainingError
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = phalanx.Nothing
