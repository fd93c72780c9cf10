"""The backend between two hosts, which are network namespaces: what DDP computes there, and what it says of a death.

Both in plain and encrypted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import pytest
from support.hosts import TwoHosts
from support.places import APPS, ROOT
from support.tiers import whole

pytestmark = [pytest.mark.timeout(240), pytest.mark.alone, whole("two hosts")]

# Two ranks on the first host, one on the second: sums are made inside a host and between hosts.
PLACES = [0, 0, 1]
LAST = len(PLACES) - 1
NOTICED_SECONDS = 1.5  # docs/collectives.md


# gloo, with which the losses are compared, has no encryption.
ENCRYPTED = {"PHALANX_ENCRYPTION": "on", "PHALANX_PLAIN_GRADIENTS": "allowed"}


@pytest.fixture(scope="module", params=[{}, ENCRYPTED], ids=["plain", "encrypted"])
def answers(
    hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """What the ranks wrote: losses of all, and the words on the death of the last, of the others."""
    folder = tmp_path_factory.mktemp("ranks")
    with contextlib.ExitStack() as running:
        programs = []
        for rank, place in enumerate(PLACES):
            env = {
                "MASTER_ADDR": hosts.addresses[0],
                "GLOO_SOCKET_IFNAME": hosts.interfaces[place],
                "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
                "OMP_NUM_THREADS": "1",
            } | request.param
            command = [sys.executable, APPS / "hosts_ddp.py", str(rank), str(len(PLACES)), folder]
            program = hosts.host(place).start(command, folder / f"out-{rank}", env=env)
            programs.append(running.enter_context(program))
        for rank, program in enumerate(programs):
            code = program.ends(200)
            assert (code == 0) == (rank != LAST), program.text
    return {
        path.name: json.loads(path.read_text())
        for kind in ("losses", "death")
        for path in folder.glob(f"{kind}-*")
    }


def test_ddp_between_hosts_has_the_losses_of_gloo(answers: dict[str, Any]) -> None:
    for rank in range(len(PLACES)):
        losses = answers[f"losses-{rank}"]
        assert losses["phalanx"] == pytest.approx(losses["gloo"], rel=1e-5)
        assert len(losses["phalanx"]) > 3


def test_a_rank_killed_on_the_other_host_is_named_by_the_survivors_though_its_child_lives_on(
    answers: dict[str, Any],
) -> None:
    # BACKEND-4
    assert f"death-{LAST}" not in answers
    for rank in range(LAST):
        told = answers[f"death-{rank}"]
        assert f"rank {LAST} died" in told["text"], told
        assert told["seconds"] < NOTICED_SECONDS
