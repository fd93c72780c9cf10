"""How the JVMs of the tests start: quickly, since most of them live for seconds.

The options are in `JDK_JAVA_OPTIONS`, which the `java` command reads: drivers, executors, daemons, spark-submit.
Measured on two cores, a cluster of two executors and its first run take 23 s of processor time with them and 58 s
without: the second compiler and the garbage collector's threads don't pay in seconds, and the archive, which `make`
makes from the installed Spark (`target/spark-classes.jsa`), has Spark's classes read and verified. It is mapped where
its pointers are right as they are: else each JVM writes to 120 MB of it, and the launcher's for nothing.
"""

from __future__ import annotations

import os

from support.places import ROOT

ARCHIVE = ROOT / "target" / "spark-classes.jsa"
IN_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


def environment(temporary: str | os.PathLike[str]) -> dict[str, str]:
    """The variables of a process whose temporary files, and those of all JVMs that come from it, are in a folder."""
    # A JVM whose class path isn't the archive's says so on its stdout, which spark-class reads.
    archive = ["-Xlog:disable", *IN_PLACE, f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else []
    options = [*QUICK, *archive, f"-Djava.io.tmpdir={temporary}"]
    return {"TMPDIR": str(temporary), "JDK_JAVA_OPTIONS": " ".join(options)}
