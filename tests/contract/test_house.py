"""The rules that `scripts/check_house.py` keeps: each lets a sound tree pass and names the place that breaks it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/check_house.py"

SOUND = {
    "Cargo.toml": '[workspace.package]\nversion = "4.5.6"\n',
    "CONTRIBUTING.md": (
        "| `rust/` | crates |\n| `python/` | the package |\n| `docs/` | pages |\n| `jvm/` | the jar |\n"
        "| `rust/types/` | `TYPES` |\n| `python/phalanx/` | `RUN` |\n"
    ),
    "docs/architecture.md": (
        "rust/types/   data\n\nUnsafe code is in `types/src/raw.rs`.\n\n"
        "## Python\n\n| module | idea |\n| --- | --- |\n| `run` | a run |\n| `threads` | |\n| `rank/` | ranks |\n\n"
        "## Threads and who owns them\n\n| process | thread |\n| --- | --- |\n| driver | `phalanx-run` |\n\n## End\n"
    ),
    "docs/configuration.md": (
        "| `spark.phalanx.grace` | `30s` |\n\n`PHALANX_HOME`; `make test`; [words](architecture.md#words)\n"
    ),
    "Makefile": "test: build\n",
    "rust/types/Cargo.toml": "",
    "rust/types/src/lib.rs": "//! Data.\nmod raw;\nmod user;\npub use user::User;\n",
    "rust/types/src/raw.rs": "//! TYPES-1: it is raw.\npub fn raw() { unsafe { () } }\n",
    "rust/types/src/user.rs": (
        'use crate::raw::raw;\npub struct User;\nconst A: &str = "a host \\\n    {b} is gone";\n'
        "#[cfg(test)]\nmod tests { // TYPES-1\n}\n"
    ),
    "python/phalanx/__init__.py": "from .run import Run\n",
    "python/phalanx/run.py": "from .rank import entry\n",
    "python/phalanx/threads.py": 'Thread(target=f, name="phalanx-run")\n',
    "python/phalanx/rank/__init__.py": (
        'KNOWN = "spark.phalanx.grace", "PHALANX_HOME"\nsay("rank "\n    f"{x} is far "\n    "too late")\n'
    ),
    "python/phalanx/rank/entry.py": "import os\n",
    "docs/troubleshooting.md": (
        "| `rank ... is far too late`, `a host ... is gone` | wait |\n| two | `nothing that is said` |\n"
    ),
    "jvm/spark/src/main/scala/Alpha.scala": "package a\n\nfinal class Alpha(b: Beta)\n",
    "jvm/spark/src/main/scala/Beta.scala": "package a\n\n/** For an Alpha. */\nclass Beta\n",
}


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_house"] = module
    sys.path.insert(0, str(SCRIPT.parent))  # as for a script that is run
    spec.loader.exec_module(module)
    return module


def breaches(house: ModuleType, root: Path, changes: dict[str, str]) -> list[str]:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for name, text in (SOUND | changes).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return [breach for check in house.CHECKS for breach in check(house.Tree(root))]


def test_a_sound_tree_has_no_breach(house: ModuleType, tmp_path: Path) -> None:
    assert breaches(house, tmp_path, {}) == []


@pytest.mark.parametrize(
    ("rule", "changes", "said"),
    [
        ("HOUSE-1", {"rust/types/src/lib.rs": "//! TYPES-1: again.\nmod raw;\n"}, "TYPES-1 is defined in"),
        (
            "HOUSE-1",
            {"python/phalanx/run.py": '"""RUN-1 (one-thread): so it is."""\n'},
            "RUN-1 is quoted by no test",
        ),
        ("HOUSE-1", {"python/tests/test_a.py": "# GONE-3\n"}, "GONE-3, which is defined nowhere"),
        (
            "HOUSE-14",
            {
                "rust/types/src/lib.rs": "//! HUB-1: so it is.\nmod raw;\n#[cfg(test)]\nmod tests {} // HUB-1\n"
            },
            "lib.rs: HUB-1 is not of its room",
        ),
        ("HOUSE-2", {"rust/types/src/lib.rs": "mod raw;\nunsafe fn f() {}\n"}, "lib.rs:2: unsafe code"),
        ("HOUSE-3", {"python/phalanx/run.py": "a = 1\n" * 501}, "has 501 lines"),
        ("HOUSE-3", {"python/phalanx/run.py": "# " + "a" * 120 + "\n"}, "run.py:1: 122 columns"),
        ("HOUSE-4", {"jvm/pom.xml": "<version>4.5.6</version>\n"}, "jvm/pom.xml:1: the version stands"),
        ("HOUSE-5", {"rust/more/Cargo.toml": ""}, "doesn't name rust/more"),
        ("HOUSE-5", {"python/phalanx/extra.py": ""}, "doesn't name python/phalanx/extra"),
        (
            "HOUSE-5",
            {
                "docs/architecture.md": SOUND["docs/architecture.md"]
                + "\n## Five values through the house\n\n**A line** passes `run.py`,\n`rank/entry.py`: 3 files.\n"
            },
            "names 2 files, and counts 3",
        ),
        ("HOUSE-5", {"notebooks/a.ipynb": "{}"}, "CONTRIBUTING.md doesn't name notebooks"),
        (
            "HOUSE-7",
            {"docs/more.md": "See `rank/entry.py` and\n`rank/gone.py`.\n"},
            "more.md:2: rank/gone.py is not there",
        ),
        ("HOUSE-7", {"docs/more.md": "[gone](gone.md)\n"}, "gone.md is not there"),
        (
            "HOUSE-7",
            {"docs/more.md": "```sh\npython docs/gone.py --all\n```\n"},
            "more.md:2: docs/gone.py is not there",
        ),
        ("HOUSE-7", {"docs/more.md": "--class dev.phalanx.spark.Gone\n"}, "no code knows the type Gone"),
        ("HOUSE-7", {"docs/more.md": "`make tests`\n"}, "make has no target tests"),
        ("HOUSE-7", {"docs/more.md": "`PHALANX_GONE`\n"}, "no code knows the variable PHALANX_GONE"),
        ("HOUSE-7", {"docs/more.md": "`spark.phalanx.gone`\n"}, "spark.phalanx.gone is not in"),
        (
            "HOUSE-7",
            {"python/phalanx/run.py": 'KEY = "spark.phalanx.gone"\n'},
            "run.py:1: spark.phalanx.gone is not in",
        ),
        (
            "HOUSE-8",
            {"python/phalanx/run.py": 'Thread(target=f, name="phalanx-more")\n'},
            "doesn't say who owns the thread phalanx-more",
        ),
        ("HOUSE-8", {"python/phalanx/threads.py": ""}, "names the thread phalanx-run, which is not there"),
        (
            "HOUSE-9",
            {"docs/troubleshooting.md": "| message | do |\n| `rank ... is far too large` | nothing |\n"},
            "troubleshooting.md:2: no code says 'is far too large'",
        ),
        (
            "HOUSE-10",
            {"python/tests/test_a.py": "a = 1\nbuilder.getOrCreate()\n"},
            "test_a.py:2: getOrCreate starts",
        ),
        (
            "HOUSE-11",
            {"rust/job/src/node/extra.rs": "fn f() {\n    orders.recv_timeout(SHORT);\n}\n"},
            "extra.rs:2: recv_timeout( waits",
        ),
        (
            "HOUSE-6",
            {
                "python/phalanx/rank/entry.py": "def f():\n    from ..run import Run\n",
                "python/phalanx/run.py": "from .rank.entry import f\n",
            },
            "python/phalanx/rank/entry.py, python/phalanx/run.py",
        ),
        (
            "HOUSE-15",
            {
                "python/phalanx/rank/ending.py": "def f():\n    from ..warm_pool import server\n",
                "python/phalanx/warm_pool/server.py": "",
                "python/phalanx/warm_pool/entry.py": "from ..rank.entry import f\n",
                "docs/architecture.md": SOUND["docs/architecture.md"].replace(
                    "| `rank/` |", "| `rank/`, `warm_pool/` |"
                ),
            },
            "these rooms import one another: python/phalanx/rank, python/phalanx/warm_pool",
        ),
        (
            "HOUSE-15",
            {
                "jvm/spark/src/main/scala/dev/phalanx/spark/ui/Page.scala": "class Page { def a: Node = null }\n",
                "jvm/spark/src/main/java/dev/phalanx/spark/ui/Tab.java": "class Tab {}\n",
                "jvm/spark/src/main/scala/dev/phalanx/spark/node/Node.scala": "class Node\n",
                "jvm/spark/src/main/scala/dev/phalanx/spark/node/Task.scala": "class Task { def a: Tab = null }\n",
            },
            "these rooms import one another: dev/phalanx/spark/node, dev/phalanx/spark/ui",
        ),
        (
            "HOUSE-6",
            {"rust/types/src/raw.rs": "//! TYPES-1: raw.\nuse super::user;\n"},
            "rust/types/src/raw.rs, rust/types/src/user.rs",
        ),
        (
            "HOUSE-6",
            {"rust/types/src/raw.rs": "//! TYPES-1: raw.\nuse super::user::{self, User};\n"},
            "rust/types/src/raw.rs, rust/types/src/user.rs",
        ),
        (
            "HOUSE-6",
            {"jvm/spark/src/main/scala/Beta.scala": "package a\n\nclass Beta { def a: Alpha = null }\n"},
            "Alpha.scala",
        ),
        (
            "HOUSE-6",
            {
                "jvm/spark/src/main/scala/feeding/Column.scala": "class Column { def a: Wide = null }\n",
                "jvm/spark/src/main/scala/feeding/Wide.scala": "class Wide extends Column\n",
                "jvm/spark/src/main/scala/ui/Table.scala": "class Column\n",
            },
            "feeding/Column.scala, jvm/spark/src/main/scala/feeding/Wide.scala",
        ),
    ],
)
def test_a_breach_is_named_with_its_place(
    house: ModuleType, tmp_path: Path, rule: str, changes: dict[str, str], said: str
) -> None:
    found = breaches(house, tmp_path, changes)
    assert [said in breach for breach in found] == [True], (rule, found)
