"""How a model goes to the executors: when it is sent again, and what its process is told."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from phalanx.request.settings import Settings
from phalanx.scoring.model import given_model
from phalanx.scoring.told import told_of
from phalanx.scoring.trouble import Trouble


class Scaled(torch.nn.Linear):
    """It has tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale = torch.ones(1)
        self.told: dict[str, Any] = {"steps": [torch.zeros(2)]}


def other_scale(net: Any) -> None:
    net.scale = torch.full((1,), 2.0)


def other_step(net: Any) -> None:
    net.told["steps"][0].data.add_(1)


def other_order(net: Any) -> None:
    net.weight.data.copy_(net.weight.data.flip(0))


def other_parameter(net: Any) -> None:
    net.kept = net.weight  # so that it lives on
    net.weight = torch.nn.Parameter(net.weight.detach() + 1)


def other_number(net: Any) -> None:
    net.told["number"] = 1


@pytest.mark.parametrize("change", [other_scale, other_step, other_order, other_parameter, other_number])
def test_a_module_that_has_changed_anywhere_is_sent_again_and_else_it_is_not(change: Any) -> None:
    net = Scaled()
    first = given_model(net)
    assert given_model(net) is first, "SCORE-11"
    change(net)
    second = given_model(net)
    assert second.key != first.key, "SCORE-11"
    assert given_model(net) is second


def test_rows_of_a_large_tensor_that_change_places_are_seen() -> None:
    net = torch.nn.Linear(300, 2000)
    first = given_model(net)
    net.weight.data.copy_(net.weight.data[torch.randperm(2000)])
    assert given_model(net).key != first.key, "SCORE-11"


def test_a_module_that_was_made_for_inference_is_a_model() -> None:
    with torch.inference_mode():
        net = torch.nn.Linear(2, 2)
    assert given_model(net) is given_model(net)


def test_a_function_may_make_another_model_the_next_time_so_its_process_stays_a_short_time() -> None:
    def make() -> Any:
        return len

    first, second = given_model(make), given_model(make)
    assert first.key != second.key
    settings = Settings.read(lambda name: None)
    conf: Any = type("Conf", (), {"get": staticmethod(lambda name: None)})
    told = [told_of(conf, settings, is_for_one=is_for_one)["idle"] for is_for_one in (True, False)]
    assert (told[0], first.is_for_one) == (30, True)
    assert told[1] == settings.predict_idle > 30


def test_an_exception_is_told_of_in_a_line_of_its_own_and_its_notes_behind() -> None:
    problem = ValueError("13 is odd")
    if hasattr(problem, "add_note"):
        problem.add_note("a note")
    try:
        raise problem
    except ValueError as raised:
        trouble = Trouble.of(raised)
    assert trouble.error == "ValueError: 13 is odd"
    assert ("a note" in trouble.traceback) == hasattr(problem, "add_note")


def test_a_function_whose_wrapper_has_its_argument_is_a_factory() -> None:
    def made(scale: int) -> Any:
        return lambda x: x * scale

    @functools.wraps(made)
    def factory() -> Any:
        return made(3)

    assert given_model(factory).is_for_one
    with pytest.raises(
        TypeError, match="missing a required argument: 'scale'; give a function that returns yours"
    ):
        given_model(made)
