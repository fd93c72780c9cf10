"""A YARN cluster: Hadoop's own ResourceManager and NodeManagers, in one process, on this machine's files without HDFS.

Maven brings the daemons' classes, of the version of the Hadoop client that pyspark has, into target/yarn.

TEST-19 (nobody-left): after `stop` no daemon, container or process of one is alive.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import phalanx

from support import identity
from support.places import ROOT
from support.programs import Program, below, spark_home

JARS = ROOT / "target" / "yarn"
SOURCE = Path(__file__).with_name("YarnDaemons.java")
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
# The ResourceManager of Hadoop 3.5.0 doesn't start without BouncyCastle, of which it is built with this version.
ARTIFACTS = (
    "org.apache.hadoop:hadoop-client-minicluster:{hadoop}",
    *(f"org.bouncycastle:{name}-jdk18on:1.82" for name in ("bcpkix", "bcprov", "bcutil")),
)
NODES = 2
# One container of an executor and one of an application's master fit into a node, and two of executors don't: each
# node has an executor.
NODE_MIB = 2304
EXECUTOR_HEAP_MIB, EXECUTOR_OVERHEAD_MIB = 512, 768
# What a container is killed for is a warning.
LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1}: %m%n
"""


class Missing(Exception):
    """What Maven can't bring, and why."""


def jars() -> list[Path]:
    """The daemons' jars; Maven brings those that aren't there yet."""
    [client] = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    names = [artifact.format(hadoop=hadoop) for artifact in ARTIFACTS]
    found = [JARS / "{1}-{2}.jar".format(*name.split(":")) for name in names]
    JARS.mkdir(parents=True, exist_ok=True)
    for name, jar in zip(names, found, strict=True):
        if jar.exists():
            continue
        command = ["mvn", "--quiet", "--batch-mode", f"{PLUGIN}:copy", f"-Dartifact={name}"]
        try:
            subprocess.run(
                [*command, f"-DoutputDirectory={JARS}"],
                cwd=JARS,
                check=True,
                capture_output=True,
                text=True,
                timeout=300,
            )
        except (OSError, subprocess.SubprocessError) as problem:
            said = (getattr(problem, "stdout", None) or str(problem)).strip().splitlines()
            raise Missing(f"Maven can't bring {name}: {said[0]}") from problem
    return found


def _java_home() -> str:
    """Where the `java` of the path is; a container has no other way to find it."""
    if "JAVA_HOME" not in os.environ:
        java = shutil.which("java")
        assert java, "there is no java"
        return str(Path(java).resolve().parents[1])
    return os.environ["JAVA_HOME"]


def _write(folder: Path, settings: Mapping[str, object]) -> None:
    """A folder that HADOOP_CONF_DIR may name."""
    folder.mkdir()
    properties = "".join(
        f"<property><name>{key}</name><value>{escape(str(value))}</value></property>\n"
        for key, value in settings.items()
    )
    # What only stands in core-site.xml gives way to YARN's defaults, and Spark reads file systems from nowhere else.
    for site in ("core-site.xml", "yarn-site.xml"):
        (folder / site).write_text(f"<configuration>\n{properties}</configuration>\n")


class Yarn:
    """A ResourceManager and two NodeManagers, which kill containers that take more memory than they asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        classes = jars()
        settings = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": folder / "tmp"}
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "daemons", settings | self._of_daemons())
        (folder / "daemons" / "log4j2.properties").write_text(LOGGING)
        # Nothing asks for a name beyond this machine, also where its own name has no address.
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {socket.gethostname()}\n")
        path = [folder / "daemons", spark_home() / "jars" / "*", *classes]
        command = [
            "java", "-Xmx512m", f"-Djdk.net.hosts.file={folder / 'hosts'}",
            "-cp", ":".join(map(str, path)), SOURCE, folder, str(NODES),
        ]  # fmt: skip
        self.daemons = Program(command, folder / "daemons.log", env={"JAVA_HOME": _java_home()})
        try:
            self.daemons.waits_for("the nodes have registered", 90, lambda: "READY " in self.daemons.text)
        except BaseException:
            self.stop()
            raise
        [ready] = [line for line in self.daemons.text.splitlines() if line.startswith("READY ")]
        _, clients, scheduler = ready.split()
        addresses = {
            "yarn.resourcemanager.address": clients,
            "yarn.resourcemanager.scheduler.address": scheduler,
        }
        _write(folder / "conf", settings | addresses)
        self.env = {
            "HADOOP_CONF_DIR": str(folder / "conf"),
            "YARN_CONF_DIR": str(folder / "conf"),
            "JAVA_HOME": _java_home(),
        }
        """What spark-submit needs to find the cluster."""

    @staticmethod
    def _of_daemons() -> dict[str, object]:
        addresses = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        of_nodes = ("address", "localizer.address", "collector-service.address")
        return {
            **{f"yarn.resourcemanager.{name}": "127.0.0.1:0" for name in addresses},
            **{f"yarn.nodemanager.{name}": "127.0.0.1:0" for name in of_nodes},
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": 100,
            "yarn.scheduler.capacity.maximum-am-resource-percent": 1,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.scheduler.maximum-allocation-mb": NODE_MIB,
            "yarn.nodemanager.resource.memory-mb": NODE_MIB,
            # Of the daemons' variables containers have these; tests know their own processes by one of them.
            "yarn.nodemanager.env-whitelist": f"JAVA_HOME,JDK_JAVA_OPTIONS,SPARK_LOCAL_IP,TMPDIR,{identity.NAME}",
            # Virtual memory says nothing of what a JVM or torch takes: docs/install/yarn.md.
            "yarn.nodemanager.vmem-check-enabled": "false",
            # By its default YARN leaves memory to the kernel, also where there are no cgroups.
            "yarn.nodemanager.resource.memory.enforced": "false",
            "yarn.nodemanager.container-monitor.interval-ms": 1000,
            # A disk that is nine tenths full is no sick one. (Where the checker is off, it still looks once.)
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
        }

    def conf(self, mode: str) -> dict[str, str]:
        """The settings of an application with an executor on each node, in `client` or `cluster` mode."""
        # That of the archive of classes (tests/support/jvm.py) comes first, else the containers' JVMs don't take it.
        path = f"{spark_home() / 'conf'}:{spark_home() / 'jars'}/*"
        return {
            "spark.executor.extraClassPath": path,
            **({"spark.driver.extraClassPath": path} if mode == "cluster" else {}),
            "spark.submit.deployMode": mode,
            "spark.master": "yarn",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.phalanx.grace": "1s",
            "spark.executor.instances": str(NODES),
            "spark.executor.cores": "1",
            "spark.executor.memory": f"{EXECUTOR_HEAP_MIB}m",
            "spark.executor.memoryOverhead": f"{EXECUTOR_OVERHEAD_MIB}m",
            "spark.driver.memory": "512m",
            "spark.yarn.am.memory": "512m",
            # The installed Spark, which nobody has to copy.
            "spark.yarn.jars": f"local:{spark_home() / 'jars'}/*",
            "spark.yarn.stagingDir": (self.folder / "staging").as_uri(),
            "spark.yarn.report.interval": "200ms",
            "spark.yarn.scheduler.heartbeat.interval-ms": "1000",
            **phalanx.spark_conf(),
        }

    def logs(self, submitted: Program, file: str) -> list[str]:
        """All containers' logs with this name, `stdout` or `stderr`, of the application that was submitted.

        The first is that of the application's master, which in cluster mode is the driver."""
        [application] = set(re.findall(r"Submitted application (application_\w+)", submitted.text))
        found = self.folder.glob(f"logs-*/{application}/container_*/{file}")
        return [path.read_text(errors="replace") for path in sorted(found, key=lambda path: path.parent.name)]

    def containers(self) -> list[int]:
        """The processes of all containers that hang on their node."""
        return [process.pid for process in below(self.daemons.pid)]

    def stop(self) -> None:
        self.daemons.end()
