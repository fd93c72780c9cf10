"""Groups that would be plain between hosts, where the run encrypts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from phalanx.process_group import plain_groups

pytestmark = pytest.mark.timeout(120)

# The second rank of the second host of three, each with two.
PLACE = {
    "RANK": "3",
    "WORLD_SIZE": "6",
    "PHALANX_HOST_RANKS": "2-3",
    "PHALANX_ENCRYPTION": "on",
}


@pytest.fixture(autouse=True)
def rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PHALANX_PLAIN_GRADIENTS", raising=False)


@pytest.mark.parametrize(
    ("backend", "named"),
    [
        ("gloo", "gloo"),
        ("NCCL", "nccl"),
        ("cpu:gloo,cuda:nccl", "gloo and nccl"),
        ("cpu:phalanx,cuda:nccl", "nccl"),
        ("undefined", "gloo and nccl"),
        (None, "gloo and nccl"),
        ("mpi", "mpi"),
    ],
)
def test_a_plain_group_between_hosts_is_refused_by_name(backend: str | None, named: str) -> None:
    # BACKEND-6
    for ranks in ([], [0, 3], [2, 3, 4], range(6)):
        with pytest.raises(RuntimeError) as refused:
            plain_groups.check(ranks, backend)
        said = str(refused.value)
        assert said.startswith(f"a group of {named} would send gradients unencrypted to other hosts")
        for way in ("spark.phalanx.encryption", "'phalanx'", "allowPlainGradients=true"):
            assert way in said


def test_what_stays_on_the_host_or_is_encrypted_or_allowed_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_groups.check([2, 3], "gloo")
    plain_groups.check([3], "nccl")
    plain_groups.check([0, 1, 4], "gloo")  # without this rank
    for backend in ("phalanx", "cpu:phalanx,cuda:phalanx", "fake"):
        plain_groups.check([], backend)
    monkeypatch.setenv("PHALANX_PLAIN_GRADIENTS", "allowed")
    plain_groups.check([], "gloo")
    monkeypatch.delenv("PHALANX_PLAIN_GRADIENTS")
    monkeypatch.setenv("WORLD_SIZE", "2")
    plain_groups.check([], "gloo")


GROUPS = """
import phalanx, torch.distributed as dist
def made(**asked):
    try:
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1, **asked)
    except RuntimeError as refused:
        return str(refused).split(" would")[0]
    try:
        return dist.get_backend(dist.new_group([0], backend="gloo"))
    finally:
        dist.destroy_process_group()
print(made(backend="gloo"), made(backend="cpu:gloo"), made(), made(backend="phalanx"), sep="; ")
"""


def test_torchs_own_calls_are_refused_where_the_node_says_that_ranks_encrypt() -> None:
    # BACKEND-7
    alone = {"RANK": "0", "PHALANX_HOST_RANKS": "0-0"}
    said = {}
    for encryption in ("on", "off"):
        done = subprocess.run(
            [sys.executable, "-c", GROUPS],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **alone, "PHALANX_ENCRYPTION": encryption},
        )
        assert done.returncode == 0, done.stderr
        said[encryption] = done.stdout.strip().split("; ")
    assert said["on"] == ["a group of gloo", "a group of gloo", "a group of gloo and nccl", "gloo"]
    assert said["off"] == ["gloo"] * 4
