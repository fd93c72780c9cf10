"""The border between `make test` and `make test-all`: what the faces of a test, and what it says, make of it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiers import differs, faces_wanted, mark, whole

pytestmark = pytest.mark.timeout(30)


class Case:
    """Stands for a case of a test: its parameters, and the markers that the test has."""

    def __init__(self, test: str, markers: Sequence[pytest.MarkDecorator] = (), **parameters: Any) -> None:
        self.nodeid = f"tests/test_a.py::{test}[{'-'.join(map(str, parameters.values()))}]"
        self.path = "tests/test_a.py"
        self.callspec = SimpleNamespace(params=parameters)
        self.markers = [decorator.mark for decorator in markers]

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [marker for marker in self.markers if marker.name == name]

    def add_marker(self, decorator: pytest.MarkDecorator) -> None:
        self.markers.append(decorator.mark)


def kept(cases: list[Any], *, connect: bool = False) -> list[str]:
    """The face of each case that `make test` runs."""
    mark(cases, connect=connect)
    return [str(case.callspec.params.get("stage")) for case in cases if not case.iter_markers("whole")]


def over(*faces: str, test: str = "test_it", markers: Sequence[pytest.MarkDecorator] = ()) -> list[Case]:
    return [Case(test, markers, stage=face) for face in faces]


def test_a_test_over_several_faces_keeps_the_jvm_stage_and_those_that_differ() -> None:
    assert kept(over("local", "python", "jvm")) == ["jvm"], "TEST-17"
    mine = differs("python", "local-cold", why="another node")
    assert kept(over("local", "local-cold", "python", "jvm", markers=[mine])) == [
        "local-cold",
        "python",
        "jvm",
    ]


def test_no_test_is_left_out_by_its_faces_alone() -> None:
    assert kept(over("local", "python")) == ["local"], "TEST-17"
    assert kept([*over("python"), *over("jvm", test="test_other")]) == ["python", "jvm"]
    assert kept([Case("test_it", size=1), Case("test_it", stage="no face")]) == ["None", "no face"]


def test_what_a_test_says_of_itself_stays() -> None:
    assert kept(over("python", "jvm", markers=[whole("two hosts")])) == [], "TEST-16"
    [marked, _] = cases = over("python", "jvm")
    kept(cases)
    assert [marker.args for marker in marked.iter_markers("whole")] == [("over python",)], (
        "it says what it is"
    )


def test_a_client_of_spark_connect_has_only_what_differs_there() -> None:
    mine = differs("python", "connect", why="another way")
    assert kept(over("local", "connect", markers=[mine]), connect=True) == ["connect"], "TEST-18"
    assert kept(over("local", "connect"), connect=True) == []


def test_a_face_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no faces: scala; there are jvm, python, local"):
        differs("scala", why="it is another language")


def test_a_driver_that_tests_share_tries_only_the_faces_of_those_that_run() -> None:
    session = SimpleNamespace(items=[*over("jvm"), *over("local")])
    request: Any = SimpleNamespace(session=session, path="tests/test_a.py")
    assert faces_wanted(request, ["python", "jvm", "local"]) == ["jvm", "local"]
    request.path = "tests/test_b.py"
    assert faces_wanted(request, ["python", "jvm", "local"]) == []
