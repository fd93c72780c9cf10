"""What a script that starts Python does to the environment, and what a forked rank has of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

WRAPPED = """
import json, os, sys
from phalanx.warm_pool.wrapper_env import Wrapper
launcher = Wrapper({"GIVEN": "guard's"})
ranks = json.loads(sys.argv[1])
print(json.dumps([launcher.applied(rank) for rank in ranks]))
"""
# The guard's part: it starts the script with a variable more than its own, and stays its parent.
GUARD = "import os, subprocess, sys; subprocess.run(sys.argv[1:], env=os.environ | {'GIVEN': \"guard's\"}, check=True)"
SCRIPT = 'export ADDED=1 PATHS="front:$PATHS"; unset GONE; exec "$0" "$@"'


def applied(*ranks: dict[str, str]) -> list[dict[str, str] | None]:
    command = [
        sys.executable,
        "-c",
        GUARD,
        "sh",
        "-c",
        SCRIPT,
        sys.executable,
        "-c",
        WRAPPED,
        json.dumps(ranks),
    ]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "PATHS": "back", "GONE": "x"}
    out = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    return list(json.loads(out))


def test_a_forked_rank_has_what_its_launcher_sets_or_starts_anew() -> None:
    same = {"PATHS": "back", "GONE": "x", "GIVEN": "guard's", "RANK": "1"}
    [like_the_pool, another] = applied(same, same | {"PATHS": "else"})
    assert like_the_pool is not None
    wanted = {"PATHS": "front:back", "GIVEN": "guard's", "RANK": "1", "ADDED": "1"}
    # what shells set, and Python itself where the locale is C
    others = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert {name: value for name, value in like_the_pool.items() if name not in others} == wanted, "POOL-9"
    assert another is None, "POOL-9: what the script would make of it isn't known"
