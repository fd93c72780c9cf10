"""What ranks tell while they run, as the caller sees it."""

from __future__ import annotations

from phalanx import seen


def test_stacks_print_as_groups_and_are_a_dictionary() -> None:
    stacks = seen.Stacks({0: "a", 1: "a"}, "ranks 0-1:\n  a\n")
    assert (stacks[1], str(stacks)) == ("a", "ranks 0-1:\n  a\n")


def test_a_report_is_its_step_and_what_else_was_told() -> None:
    assert seen.report(3, '{"loss": 0.5}') == {"step": 3, "loss": 0.5}
    assert seen.report(0, "") == {"step": 0}
