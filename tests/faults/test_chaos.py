"""An elastic run whose ranks and executors die, stand still and are decommissioned, until it is enough."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support import chaos
from support.programs import TWO_EXECUTORS, Program, classic_conf, executors
from support.tiers import whole


@pytest.mark.timeout(400)
@whole("faults that others test one by one, two minutes of them")
def test_a_run_whose_ranks_and_executors_go_has_the_losses_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    conf = classic_conf(TWO_EXECUTORS) | chaos.CONF
    env = {"DRIVER_CONF": json.dumps(conf)}
    with Program(chaos.command(tmp_path, 1, 2), tmp_path / "out", env=env) as program:

        def kill_an_executor(chance: random.Random) -> None:
            chance.choice(sorted(executors(program.pid), key=lambda one: one.pid)).kill()

        faults: dict[str, chaos.Fault] = {
            "a rank is killed": chaos.kills_a_rank(tmp_path),
            "a rank stands still": chaos.freezes_a_rank(tmp_path),
            "an executor is killed": kill_an_executor,
            "an executor is decommissioned": chaos.decommissions(tmp_path),
        }
        chaos.endures(program, tmp_path, faults, seconds=120, every=10)
