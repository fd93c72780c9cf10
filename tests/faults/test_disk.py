"""The disk for temporary files is full: before a run, while it writes output, and when it leaves what matters.

A driver program has a small file system of its own for that, in a mount namespace of its own.

TEST-1 (no-false-success): nothing that is lost passes for success, and the message says why.
TEST-2 (nothing-left): nothing is left, and the next run works.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support import jvm
from support.places import APPS
from support.programs import ONE_EXECUTOR, classic_conf, seen_by
from support.tiers import faces_wanted, whole

pytestmark = pytest.mark.timeout(480)

FACES = ["python", "jvm", "local"]

NO_SPACE = "No space left on device"


@pytest.fixture(scope="module")
def by_face(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By face: what `full_disk.py` has seen; all that it and its executors write is on the disk."""
    folder = tmp_path_factory.mktemp("small")
    disk = folder / "disk"
    disk.mkdir()
    own_mounts = ["unshare", "--mount", "--propagation", "private", "--"]
    if subprocess.run([*own_mounts, "mount", "-t", "tmpfs", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a file system can't be mounted in a namespace here (that takes root)")
    conf = classic_conf(ONE_EXECUTOR) | {"spark.local.dir": str(disk)}
    mount = f'mount -t tmpfs -o size=96m,nr_inodes=8192 tmpfs {disk} && exec "$@"'
    command = [
        *own_mounts,
        "sh",
        "-c",
        mount,
        "sh",
        sys.executable,
        str(APPS / "full_disk.py"),
        str(disk),
        *faces_wanted(request, FACES),
    ]
    env = {"DRIVER_CONF": json.dumps(conf), **jvm.environment(disk)}
    return seen_by(command, folder, env=env, within=450)


@whole("ranks, for rust/job/tests/disk.rs")
@pytest.mark.parametrize("over", FACES)
def test_a_full_disk_is_told_as_what_it_is_and_leaves_nothing(over: str, by_face: dict[str, Any]) -> None:
    seen = by_face[over]
    assert seen["warm"]["result"] == "well", seen["warm"]

    for name in ("full before", "no inode before"):
        early = seen[name]
        assert NO_SPACE in early.get("message", ""), early
        assert "\n" not in early["message"], "one sentence"
        assert early["seconds"] < 60, early

    output = seen["output"]
    assert output["result"] == "well", output
    assert "[rank 0] before\n" in output["shown"], output
    assert "[rank 0] after\n" in output["shown"], output
    lost = f"bytes of output could not be written: {NO_SPACE}"
    assert lost in output["shown"], output["shown"][-2000:]
    assert output["shown"].count(lost) <= 5, "it is said, and not for each line"

    error = seen["error"]
    assert (error["kind"], error["type"], error["rank"]) == ("exception", "ValueError", 1), error
    assert "what the user did" in error["message"], error

    assert seen["checkpoint"]["result"] == [
        f"step 2: {NO_SPACE}", 1, float(1 << 20), ["step-0000000001.pt"], 3,
    ], seen["checkpoint"]  # fmt: skip

    result = seen["result"]
    assert (result["kind"], NO_SPACE in result["message"]) == ("exception", True), result
    # Rank 1's result is short: there may be room for it, and then none at the driver, which has the same disk.
    if "rank 1 succeeded, but the driver can't keep its result" not in result["message"]:
        assert (result["type"], result["rank"] in (0, 1)) == ("OSError", True), result
        assert f"{NO_SPACE}: '" in result["message"], "TEST-1: it names the file"
        assert "/result'" in result["message"], result

    driver = seen["result at the driver"]
    assert "rank 0 succeeded, but the driver can't keep its result" in driver["message"], driver
    assert NO_SPACE in driver["message"], driver

    assert seen["after"]["result"] == "well", seen["after"]
    for name, run in seen.items():
        assert run["left"] == [], f"TEST-2: {name}"
