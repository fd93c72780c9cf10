"""What the driver keeps of what it has seen."""

from __future__ import annotations

from phalanx import seen


def test_each_ranks_lines_are_kept_apart_and_notices_are_left_out() -> None:
    logs = seen.Logs()
    logs.take("[rank 0] a\n[rank 1] b\n[phalanx] restart 1 of 1: x\n[rank 0] \n[rank 0] c\n")
    assert (logs.of(0), logs.of(1), logs.of(2)) == ("a\n\nc\n", "b\n", "")


def test_a_progress_bar_is_its_last_state() -> None:
    logs = seen.Logs()
    logs.take("\r[rank 0] 10%\r[rank 0] 100%  \n")
    assert logs.of(0) == "100%\n"


def test_memory_is_bounded() -> None:
    logs = seen.Logs()
    for i in range(1000):
        logs.take(f"[rank 0] {i} {'x' * 1000}\n")
    assert len(logs.of(0)) <= seen.LOG_CHARS, "SEEN-1"
    assert logs.of(0).splitlines()[-1].startswith("999 ")


def test_stacks_print_as_groups_and_are_a_dictionary() -> None:
    stacks = seen.Stacks({0: "a", 1: "a"}, "ranks 0-1:\n  a\n")
    assert (stacks[1], str(stacks)) == ("a", "ranks 0-1:\n  a\n")
