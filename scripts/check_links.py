#!/usr/bin/env python3
"""Looks whether each class, method and field of Spark's and Scala's that the jars refer to is there in each version.

    scripts/check_links.py [JAR]...

No Spark is started. A jar for Scala 2.12 is compared with the Sparks that are built with it, one for Scala 2.13 with
those. Maven brings the jars of each line's first and newest release, into ~/.m2 and from there to target/links/; those
of the pysparks that are installed are looked at where they are. A reference is resolved as a JVM does it: in the class
that it names, then in that class's parents; what it finds has to be public, and a class or an interface as the
reference says.

It uses the standard library only.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from spark_lines import LINES, ROOT, Line

LINKS = ROOT / "target" / "links"
JARS = ROOT / "python" / "phalanx" / "jars"

# Whose classes are looked at; others come with the JDK, or with the libraries that Spark itself brings.
PREFIXES = ("org/apache/spark/", "org/sparkproject/", "scala/")
PUBLIC, INTERFACE = 0x0001, 0x0200
# Only a Spark Connect server loads it, from 4.0 on: it is compared with the Sparks that have this class of its.
PLUGIN, CONNECT = (
    "dev/phalanx/spark/connect/ConnectPlugin",
    "org/apache/spark/sql/connect/plugin/CommandPlugin",
)
# What any object has, also where a parent is not looked at.
OBJECT = {
    "<init>", "clone", "equals", "finalize", "getClass", "hashCode", "notify", "notifyAll", "toString", "wait",
}  # fmt: skip

Member = tuple[str, str]


@dataclass
class ClassFile:
    """What a class is and what it refers to."""

    flags: int
    parents: list[str]
    members: dict[Member, int] = field(default_factory=dict)
    """Name and descriptor of each field and method, and its flags."""
    classes: set[str] = field(default_factory=set)
    uses: set[tuple[str, str, str, int]] = field(default_factory=set)
    """Owner, name, descriptor and kind of what it refers to: 9 a field, 10 a class's method, 11 an interface's."""


def read_class(data: bytes) -> ClassFile:
    pool, at = _constant_pool(data)

    def u2(position: int) -> int:
        return int(struct.unpack_from(">H", data, position)[0])

    def name(index: int) -> str:
        return str(pool[pool[index][1]][1])

    flags, parent, count = u2(at), u2(at + 4), u2(at + 6)
    at += 8
    parents = [name(u2(at + 2 * i)) for i in range(count)] + ([name(parent)] if parent else [])
    found = ClassFile(flags, parents)
    at += 2 * count
    for _ in range(2):  # fields, then methods
        count = u2(at)
        at += 2
        for _ in range(count):
            found.members[str(pool[u2(at + 2)][1]), str(pool[u2(at + 4)][1])] = u2(at)
            attributes = u2(at + 6)
            at += 8
            for _ in range(attributes):
                at += 6 + struct.unpack_from(">I", data, at + 2)[0]
    for entry in pool.values():
        if entry[0] == 7:
            found.classes.add(str(pool[entry[1]][1]).lstrip("[").removeprefix("L").rstrip(";"))
        elif entry[0] in (9, 10, 11):
            _, named, described = pool[entry[2]]
            found.uses.add((name(entry[1]), str(pool[named][1]), str(pool[described][1]), entry[0]))
    return found


def _constant_pool(data: bytes) -> tuple[dict[int, tuple], int]:
    """The constant pool by index, each entry with its tag first, and where it ends."""
    pool: dict[int, tuple] = {}
    count, at, index = struct.unpack_from(">H", data, 8)[0], 10, 1
    while index < count:
        tag = data[at]
        if tag == 1:
            size = struct.unpack_from(">H", data, at + 1)[0]
            pool[index] = (tag, data[at + 3 : at + 3 + size].decode("utf-8", "replace"))
            at += 3 + size
        elif tag in (7, 8, 16, 19, 20):
            pool[index] = (tag, *struct.unpack_from(">H", data, at + 1))
            at += 3
        elif tag in (3, 4, 9, 10, 11, 12, 17, 18):
            pool[index] = (tag, *struct.unpack_from(">HH", data, at + 1))
            at += 5
        elif tag in (5, 6):
            at += 9
            index += 1
        elif tag == 15:
            at += 4
        else:
            raise ValueError(f"an unknown constant: {tag}")
        index += 1
    return pool, at


class Library:
    """The classes of some jars; the first that has one has it."""

    def __init__(self, jars: Iterable[Path]) -> None:
        self._homes: dict[str, zipfile.ZipFile] = {}
        for jar in jars:
            archive = zipfile.ZipFile(jar)
            for entry in archive.namelist():
                if entry.endswith(".class"):
                    self._homes.setdefault(entry.removesuffix(".class"), archive)
        self.find = cache(self._find)

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def _find(self, name: str) -> ClassFile | None:
        home = self._homes.get(name)
        return read_class(home.read(f"{name}.class")) if home else None

    def flags_of(self, owner: str, member: Member) -> int | None:
        """The flags of a member in a class or its parents; None where it isn't there."""
        found = self.find(owner)
        if found is None:
            known = not owner.startswith(PREFIXES) and member[0] in OBJECT
            return PUBLIC if known else None
        if member in found.members:
            return found.members[member]
        flags = (self.flags_of(parent, member) for parent in found.parents)
        return next((one for one in flags if one is not None), None)


def missing(ours: Library, theirs: Library) -> Iterator[str]:
    """A line for each thing that classes of ours refer to and the others don't have."""
    classes, uses = set(), set()
    for name in ours:
        if name.startswith(PLUGIN) and theirs.find(CONNECT) is None:
            continue
        found = ours.find(name)
        assert found is not None
        classes |= {one for one in found.classes if one.startswith(PREFIXES)}
        uses |= {one for one in found.uses if one[0].startswith(PREFIXES)}
    for name in sorted(classes):
        one = theirs.find(name)
        if one is None:
            yield f"no class {name}"
        elif not one.flags & PUBLIC:
            yield f"class {name} is not public"
    for owner, name, described, kind in sorted(uses):
        one = theirs.find(owner)
        if one is None:
            continue
        flags = theirs.flags_of(owner, (name, described))
        if flags is None:
            yield f"no {owner}.{name} {described}"
        elif not flags & PUBLIC:
            yield f"{owner}.{name} {described} is not public"
        elif kind != 9 and bool(one.flags & INTERFACE) != (kind == 11):
            yield f"{owner}, which has {name}, is {'an interface' if kind == 10 else 'a class'}"


def folder_of(release: str, scala: str) -> Path:
    return LINKS / f"{release}-{scala}"


def items() -> Iterator[tuple[Path, str, str, str]]:
    """Each jar to bring: its folder, group, artifact and version."""
    for line, release, scala in versions():
        binary = scala.rpartition(".")[0]
        connect = ("spark-connect",) if release == line.connect_plugin else ()
        for artifact in (*line.artifacts, *connect):
            yield folder_of(release, scala), "org.apache.spark", f"{artifact}_{binary}", release
        yield folder_of(release, scala), "org.scala-lang", "scala-library", scala
        # The oldest that one of them brings; the later ones have all that it has.
        yield folder_of(release, scala), "org.scala-lang.modules", f"scala-xml_{binary}", "2.1.0"
        if binary == "2.12":  # what Spark brings of the newer library
            compat = "scala-collection-compat_2.12"
            yield folder_of(release, scala), "org.scala-lang.modules", compat, "2.7.0"


def versions() -> Iterator[tuple[Line, str, str]]:
    return ((line, release, scala) for line in LINES for release in line.maven for scala in line.scalas)


def bring() -> None:
    """Has Maven bring the jars that aren't there yet."""
    wanted = [
        f"<artifactItem><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"<outputDirectory>{folder}</outputDirectory></artifactItem>"
        for folder, group, artifact, version in items()
        if not (folder / f"{artifact}-{version}.jar").exists()
    ]
    if not wanted:
        return
    print(f"link-check: Maven brings {len(wanted)} jars", flush=True)
    LINKS.mkdir(parents=True, exist_ok=True)
    (LINKS / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>dev.phalanx</groupId><artifactId>links</artifactId>"
        "<version>1</version><packaging>pom</packaging><build><plugins><plugin>"
        "<artifactId>maven-dependency-plugin</artifactId><version>3.8.1</version>"
        f"<configuration><artifactItems>{''.join(wanted)}</artifactItems></configuration>"
        "</plugin></plugins></build></project>"
    )
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(LINKS / "pom.xml"), "dependency:copy"]
    subprocess.run(command, check=True)


def sparks(scala: str) -> Iterator[tuple[str, Path]]:
    """Each Spark with this Scala: its name, and the folder of its jars."""
    for _, release, library in versions():
        if library.startswith(f"{scala}."):
            yield f"Spark {release}, Scala {library}", folder_of(release, library)
    for line in LINES:
        folder = line.jars()
        if folder is not None and any(folder.glob(f"spark-core_{scala}-*.jar")):
            yield f"pyspark {line.pyspark}", folder


def main(jars: list[str]) -> int:
    bring()
    found = [Path(jar) for jar in jars] or sorted(JARS.glob("phalanx-spark_*.jar"))
    if not found:
        print(f"link-check: there is no jar in {JARS}; `make jars` builds them")
        return 1
    problems = 0
    for jar in found:
        match = re.search(r"_(2\.\d+)-", jar.name)
        assert match, f"{jar.name} doesn't say which Scala it is for"
        ours = Library([jar])
        for what, folder in sparks(match[1]):
            lines = list(missing(ours, Library(sorted(folder.glob("*.jar")))))
            problems += len(lines)
            print(f"{jar.name} on {what}: {len(lines) or 'nothing'} missing")
            print("".join(f"  {line}\n" for line in lines), end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
