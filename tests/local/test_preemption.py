"""A host that is announced to go, on one host: what ranks are told, what they save, and how the run goes on."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TrainingError, run_local
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)


def command(tmp_path: Path, code: str) -> dict[str, str]:
    """The setting of a program that says when its host is to go."""
    program = tmp_path / "notice.py"
    program.write_text(code)
    return {"spark.phalanx.notice.command": f"exec {sys.executable} {program}"}


def when_asked(tmp_path: Path, line: str) -> dict[str, str]:
    """One that looks, as a platform's page is looked at, and says this when there is a file `go`."""
    there = f"import os\nif os.path.exists({str(tmp_path / 'go')!r}):\n    print({line!r})\n"
    return command(tmp_path, f"import time\nfor _ in range(40):\n    time.sleep(0.05)\n    exec({there!r})\n")


def train(go: str, steps: int, folder: str) -> tuple[int, int, int]:
    """Trains by itself, and has its host go at step 30 of its first attempt."""
    import os
    import time

    import torch
    from phalanx import checkpoint

    saved = checkpoint.latest(directory=folder)
    first, state = saved if saved is not None else (0, torch.zeros(1))
    for step in range(first, steps):
        checkpoint.save_if_preempted(state, step, directory=folder)
        if step == 30 and first == 0:
            open(go, "w").close()
        state += 1
        time.sleep(0.01)
    return first, int(state), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def test_what_is_saved_before_the_host_goes_is_where_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = when_asked(tmp_path, '{"seconds": 60, "reason": "spot"}')
    run = run_local(train, str(tmp_path / "go"), 600, str(tmp_path), num_processes=2, conf=conf, wait=False)
    first, steps, attempts = run.result(100)
    assert first > 30
    assert steps == 600, "no step is done twice, and none is left out"
    assert attempts == 1, "DRIVER-57: the run has no restarts"
    said = capsys.readouterr().out
    assert " is to go in 60 s: spot" in said or " is to go in 59 s: spot" in said
    assert "[phalanx] preempted, restart 1: rank " in said
    assert "Traceback" not in said
    (restart,) = run.snapshot()["restarts"]
    assert "raised Preempted: left at step" in restart["cause"]


def test_as_often_as_the_run_allows_and_no_oftener(tmp_path: Path) -> None:
    def leaves() -> None:
        raise phalanx.Preempted(3)

    with pytest.raises(TrainingError, match="raised Preempted: left at step 3") as failed:
        run_local(leaves, max_preemptions=2)
    assert (failed.value.kind, failed.value.restarts) == ("preempted", 2)
    assert isinstance(failed.value.__cause__, phalanx.Preempted)


def test_code_that_never_asks_is_ended_in_time_where_it_may_start_again(tmp_path: Path) -> None:
    def sleeps_at_first() -> str:
        import os
        import time

        count = os.environ["TORCHELASTIC_RESTART_COUNT"]
        time.sleep(600 if count == "0" else 0)
        return count

    conf = command(tmp_path, "print('{\"seconds\": 4}', flush=True)") | {"spark.phalanx.grace": "1s"}
    run = run_local(sleeps_at_first, conf=conf, max_restarts=1, restart_on="signal", wait=False)
    assert run.result(60) == "1", "DRIVER-57"
    (restart,) = run.snapshot()["restarts"]
    assert "and its ranks had not left their work in time" in restart["cause"], "DRIVER-55"


def test_a_rank_that_has_left_may_save_beside_its_end_and_one_that_can_not_save_is_the_cause(
    tmp_path: Path,
) -> None:
    def leaves(folder: str) -> tuple[int, float]:
        import os
        import time

        import torch
        from phalanx import checkpoint

        saved = checkpoint.latest(directory=folder)
        if saved is not None:
            return saved[0], float(saved[1])
        if os.environ["RANK"] == "0":
            checkpoint.save_async(torch.ones(1), 7, directory=folder)
            time.sleep(0.1)
        raise phalanx.Preempted(7)

    assert run_local(leaves, str(tmp_path / "here"), num_processes=2) == (7, 1.0), "RANK-3"

    def fails() -> None:
        import os
        import time

        if os.environ["RANK"] == "0":
            time.sleep(1)
            raise OSError("no space is left")
        raise phalanx.Preempted(7)

    with pytest.raises(TrainingError, match="raised OSError: no space is left") as failed:
        run_local(fails, num_processes=2)
    assert (failed.value.kind, failed.value.rank, failed.value.restarts) == ("exception", 0, 0), "DRIVER-56"


def test_what_is_saved_is_a_state_or_what_makes_one_and_never_what_a_module_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from phalanx import Notice, checkpoint
    from phalanx.checkpoint import preempted

    notice = Notice(("far",), (1,), None, "spot")
    monkeypatch.setattr(preempted, "preempted", lambda step: notice if step >= 5 else None)
    checkpoint.save_if_preempted(lambda: 1 / 0, 4, directory=str(tmp_path))
    weights = torch.nn.Linear(1, 1).state_dict()
    for step, state in enumerate([weights, lambda: weights, torch.nn.Identity()], 5):
        with pytest.raises(
            phalanx.Preempted, match=f"left at step {step}, since ranks on far are to go: spot"
        ):
            checkpoint.save_if_preempted(state, step, directory=str(tmp_path))
        found = checkpoint.latest(directory=str(tmp_path), trusted=True)
        assert found is not None
        assert found[0] == step
        assert isinstance(found[1], torch.nn.Identity) or found[1].keys() == weights.keys()


def test_a_program_that_says_no_notice_is_heard_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def takes_its_time() -> int:
        import time

        time.sleep(1)
        return 7

    conf = command(tmp_path, "for _ in range(9):\n    print('<html>404</html>', flush=True)")
    with caplog.at_level(logging.WARNING, "phalanx"):
        assert run_local(takes_its_time, conf=conf) == 7
    told = [record for record in caplog.records if "notice.command has not told a notice" in record.message]
    assert len(told) == 1, "NODE-63"


@whole("many notices, for one")
def test_two_hundred_notices_are_the_same_function_of_the_step_in_every_rank(tmp_path: Path) -> None:
    """Ranks that go at their own pace; one asks at every tenth step, and one never."""

    def asks(folder: str) -> None:
        import json
        import os
        import random
        import time

        rank = int(os.environ["RANK"])
        every = {6: 0, 7: 10}.get(rank, 1)
        told = {}
        for step in range(2500):
            if every and step % every == 0:
                notice = phalanx.preempted(step)
                told[step] = None if notice is None else notice.deadline
            time.sleep(random.random() * 0.01)
        with open(f"{folder}/{rank}.json", "w") as file:
            json.dump(told, file)

    counted = str(tmp_path / "counted")  # in case that the run begins anew
    announces = (
        "import json, os, random, time\n"
        f"first = os.path.getsize({counted!r}) if os.path.exists({counted!r}) else 0\n"
        "for number in range(first, 200):\n"
        f"    open({counted!r}, 'a').write('.')\n"
        "    time.sleep(random.random() * 0.1)\n"
        "    print(json.dumps({'seconds': 10_000 - 7 * number}), flush=True)\n"
        "time.sleep(600)\n"
    )
    run_local(asks, str(tmp_path), num_processes=8, conf=command(tmp_path, announces))
    ranks: list[Any] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(8)]
    told = [{int(step): notice for step, notice in steps.items()} for steps in ranks]
    assert (len(told[7]), told[6]) == (250, {})
    for step in range(2500):
        at_step = {steps[step] for steps in told if step in steps}
        assert len(at_step) == 1, f"DRIVER-53: at step {step}: {at_step}"
    notices = [notice for notice in told[0].values() if notice is not None]
    assert notices == sorted(notices, reverse=True)
    assert len(set(notices)) > 20
