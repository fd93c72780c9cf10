"""docs/install.md as a stranger follows it: its lines for `spark-defaults.conf`, and its check, in Spark's shells.

Of the pages for platforms that are not here it tries what is no platform's: that scripts are scripts, and copy the jar.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import phalanx
import pytest
from phalanx.spark.jar import PLUGIN
from support.places import PYTHON, ROOT
from support.programs import Program, output_of, spark_home
from support.tiers import whole

TEXT = (ROOT / "docs/install.md").read_text()

pytestmark = pytest.mark.timeout(300)


def block(info: str, containing: str) -> str:
    """The one block of the page that has this in it."""
    found = re.findall(rf"^```{info}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    [one] = [text for text in found if containing in text]
    return one


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A Spark whose defaults the page's lines have been added to."""
    conf = tmp_path_factory.mktemp("conf")
    (conf / "spark-defaults.conf").write_text("spark.ui.enabled false\nspark.master local[2]\n")
    made = {
        "PATH": f"{Path(sys.executable).parent}:{spark_home() / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(PYTHON),
        "SPARK_CONF_DIR": str(conf),
        # The shell that people see has a terminal; here it reads a file.
        "PYSPARK_DRIVER_PYTHON_OPTS": "-i",
    }
    output_of(["bash", "-euc", block("sh", "spark-defaults.conf")], env=made, within=60)
    lines = (conf / "spark-defaults.conf").read_text().splitlines()
    assert lines[2:] == [f"spark.jars {phalanx.jar_path()}", f"spark.plugins {PLUGIN}"]
    yield made
    shutil.rmtree(conf)


@whole("Spark's own shells")
def test_with_the_pages_defaults_pyspark_and_spark_shell_have_jar_and_plugin(
    env: Mapping[str, str], tmp_path: Path
) -> None:
    check = block("python", "spark.phalanx.stage")
    (tmp_path / "in.py").write_text(f"{check}\nprint('PLUGIN', spark.conf.get('spark.plugins'))\n")
    scala = (
        "val jar = dev.phalanx.spark.BarrierRunner.version()\n"
        'println(s"VERSION $jar ${sc.getConf.get("spark.plugins")}")\n'
    )
    (tmp_path / "in.scala").write_text(scala)
    # The two take turns with two processors.
    shells = {"py": "pyspark", "scala": "spark-shell"}
    said = {}
    for kind, shell in shells.items():
        command = ["bash", "-c", f"exec {shell} < {tmp_path}/in.{kind}"]
        with Program(command, tmp_path / f"out.{kind}", env=env, cwd=tmp_path) as program:
            assert program.ends(140) == 0, program.text
            said[kind] = program.text
    for rank in (0, 1):
        assert f"'rank {rank} of 2 on " in said["py"], said["py"]
    assert f"PLUGIN {PLUGIN}" in said["py"]
    assert f"VERSION {phalanx.__version__} {PLUGIN}" in said["scala"], said["scala"]


PAGES = sorted((ROOT / "docs/install").glob("*.md"))


def blocks(page: Path, info: str) -> list[str]:
    """The blocks of a page, also those within lists."""
    found = re.findall(rf"^( *)```{info}\n(.*?)^\1```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_platforms_page_has_to_paste_can_be_read(page: Path) -> None:
    scripts, values = blocks(page, "sh"), blocks(page, "json")
    for text in scripts:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)
    everything = "\n".join(scripts + blocks(page, "properties") + [json.dumps(json.loads(v)) for v in values])
    assert PLUGIN in everything


@pytest.mark.parametrize("platform", ["databricks", "emr", "dataproc"])
def test_a_platforms_script_copies_the_jar_out_of_the_package(platform: str, tmp_path: Path) -> None:
    [script] = [text for text in blocks(ROOT / f"docs/install/{platform}.md", "sh") if text.startswith("#!")]
    # What the platform and pip do has been done; `make jars` may not have run.
    script = re.sub(r"^.*(?:\bdnf\b|pip3? install|-m pip|s3://|gs://).*$", "true", script, flags=re.MULTILINE)
    script = script.replace("2.12", "2.13").replace("sudo ", "").replace("SPARK_HOME=/usr/lib/spark ", "")
    script = re.sub(
        r"/databricks/python/bin/python|/opt/conda/default/bin/python|python3\.11", sys.executable, script
    )
    script = re.sub(r"/opt/phalanx|/databricks/jars", str(tmp_path), script)
    output_of(["bash", "-c", script], env={"PYTHONPATH": str(PYTHON)}, within=60)
    [copied] = tmp_path.iterdir()
    assert copied.read_bytes() == Path(phalanx.jar_path()).read_bytes()
