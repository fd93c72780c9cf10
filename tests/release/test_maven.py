"""The Maven repository of a release, as a project of somebody else's uses it: `make wheel` makes it, and runs this."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import phalanx
import pytest
from support.installed import Installed
from support.interpreters import bare_python
from support.places import ROOT
from support.programs import output_of
from support.readme import blocks

REPOSITORY = ROOT / "target" / "wheel" / "maven"
# Of the project's builds alone: what is fetched from the repository here must not be taken for a release elsewhere.
DOWNLOADS = ROOT / "target" / "wheel" / "m2"
VERSION = phalanx.__version__

SETTINGS = f"""<settings>
  <profiles><profile><id>here</id><repositories><repository>
    <id>phalanx</id><url>{REPOSITORY.as_uri()}</url>
  </repository></repositories></profile></profiles>
  <activeProfiles><activeProfile>here</activeProfile></activeProfiles>
</settings>
"""


def artifact(scala: str, ending: str) -> Path:
    name = f"phalanx-spark_{scala}"
    return REPOSITORY / "dev" / "phalanx" / name / VERSION / f"{name}-{VERSION}{ending}"


@pytest.mark.parametrize(("scala", "spark"), [("2.12", "3.5.9"), ("2.13", "4.")])
def test_a_pom_says_that_spark_is_provided_and_asks_for_nothing_else(scala: str, spark: str) -> None:
    pom = artifact(scala, ".pom").read_text()
    assert "@" not in pom
    assert "${" not in pom
    assert "<parent>" not in pom
    [needed] = re.findall(r"(?s)<dependency>(.*?)</dependency>", pom)
    assert f"<artifactId>spark-sql_{scala}</artifactId>" in needed
    assert f"<version>{spark}" in needed
    assert "<scope>provided</scope>" in needed


def test_the_jar_stands_alone_and_its_sources_and_sbom_are_beside_it() -> None:
    with zipfile.ZipFile(artifact("2.13", ".jar")) as jar:
        names = jar.namelist()
    for name in ("lib_native.so", "libphalanx_jni.so", "phalanx-guard"):
        assert f"native/linux/x86_64/{name}" in names
    assert len(names) == len(set(names))
    with zipfile.ZipFile(artifact("2.13", "-sources.jar")) as sources:
        assert "dev/phalanx/spark/TorchDistributor.scala" in sources.namelist()
    assert artifact("2.13", "-cyclonedx.json").is_file()


@pytest.mark.timeout(1200)
def test_a_project_of_its_own_builds_and_its_application_gets_the_jar_by_its_coordinates(
    tmp_path: Path, installed: Installed
) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "jvm" / "example-project", project, ignore=shutil.ignore_patterns("target"))
    (tmp_path / "settings.xml").write_text(SETTINGS)
    [training] = blocks("python train.py")
    (tmp_path / "train.py").write_text(training)
    shutil.rmtree(DOWNLOADS / "dev" / "phalanx", ignore_errors=True)
    output_of(
        [
            "mvn", "--batch-mode", "--settings", tmp_path / "settings.xml", f"-Dmaven.repo.local={DOWNLOADS}",
            f"-Dphalanx.version={VERSION}", "package",
        ],
        env={},
        within=900,
        folder=project,
    )  # fmt: skip
    [application] = (project / "target").glob("*.jar")
    # No Phalanx in the Python of the executors: what they need is in the jar.
    env = {**installed.env}
    env["PYSPARK_PYTHON"] = str(bare_python(tmp_path / "python"))
    output = output_of(
        [
            "spark-submit", "--master", "local[2]", "--class", "example.Train",
            "--packages", f"dev.phalanx:phalanx-spark_2.13:{VERSION}", "--repositories", REPOSITORY.as_uri(),
            "--conf", f"spark.jars.ivy={tmp_path / 'ivy'}", application, "train.py", "--lr=0.5",
        ],
        env=env,
        within=240,
        folder=tmp_path,
    )  # fmt: skip
    found = re.search(r'result: \{"weight": ?([-.\d]+)\}', output)
    assert found, output
    assert float(found[1]) == pytest.approx(3, abs=0.2)
