#!/usr/bin/env python3
"""Makes a Maven repository of the jars that stand alone, into target/wheel/maven/.

    scripts/maven_repository.py WHEEL...

A jar is the one of the wheels with the native files of all of them: give a wheel for each kind of processor. So who
takes the jar from Maven has the very files that the wheel has. The POM says that Spark is provided.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from spark_lines import ROOT
from wheel import NATIVES, OUT, write

REPOSITORY = OUT / "maven"
SOURCES = ROOT / "jvm" / "spark" / "src" / "main"
DEPLOY = "org.apache.maven.plugins:maven-deploy-plugin:3.1.4:deploy-file"


def whole_jars(wheels: list[Path]) -> dict[str, bytes]:
    """Each jar of the first wheel, with the native files of all."""
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(wheels[0]) as first:
        for name in first.namelist():
            if name.endswith(".jar"):
                found[Path(name).name] = first.read(name)
    for name, jar in found.items():
        whole = io.BytesIO(jar)
        with zipfile.ZipFile(whole, "a") as archive:
            for path in wheels:
                machine = re.search(r"(x86_64|aarch64)\.whl$", path.name)
                assert machine, f"{path.name} doesn't say for which processor it is"
                with zipfile.ZipFile(path) as wheel:
                    for inside, place in NATIVES.items():
                        write(archive, f"native/linux/{machine[1]}/{inside}", wheel.read(place))
        found[name] = whole.getvalue()
    return found


def sources() -> bytes:
    """The jar of the sources, as IDEs want it."""
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w") as archive:
        for path in sorted([*SOURCES.rglob("*.scala"), *SOURCES.rglob("*.java")]):
            inside = path.relative_to(SOURCES).as_posix().split("/", 1)[1]
            if inside not in archive.namelist():  # one of the twins for the Sparks that differ
                write(archive, inside, path.read_bytes())
    return jar.getvalue()


def deploy(name: str, jar: bytes, folder: Path) -> None:
    """Puts a jar, its POM, its sources and its SBOM into the repository."""
    with zipfile.ZipFile(io.BytesIO(jar)) as archive:
        properties = dict(re.findall(r"(?m)^(\w+)=(.*)$", archive.read("phalanx.properties").decode()))
        (folder / "sbom.json").write_bytes(archive.read("META-INF/sbom/phalanx.cdx.json"))
    pom = (ROOT / "jvm" / "published.pom").read_text()
    for key, value in properties.items():
        pom = pom.replace(f"@{key}@", value.strip())
    (folder / name).write_bytes(jar)
    (folder / "pom.xml").write_text(pom)
    (folder / "sources.jar").write_bytes(sources())
    subprocess.run(
        [
            "mvn", "--quiet", "--batch-mode", DEPLOY, f"-Durl={REPOSITORY.as_uri()}", "-DrepositoryId=phalanx",
            f"-Dfile={folder / name}", f"-DpomFile={folder / 'pom.xml'}", f"-Dsources={folder / 'sources.jar'}",
            f"-Dfiles={folder / 'sbom.json'}", "-Dclassifiers=cyclonedx", "-Dtypes=json",
        ],
        cwd=folder,
        check=True,
    )  # fmt: skip


def main(wheels: list[Path]) -> int:
    if not wheels:
        print(__doc__)
        return 2
    shutil.rmtree(REPOSITORY, ignore_errors=True)
    for name, jar in whole_jars(wheels).items():
        with tempfile.TemporaryDirectory() as folder:
            deploy(name, jar, Path(folder))
    print(REPOSITORY)
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(word).resolve() for word in sys.argv[1:]]))
