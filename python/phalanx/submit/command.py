"""The command `phalanx submit`: from a job to a `spark-submit` that runs it.

    phalanx submit job.yaml --spark-master spark://host:7077 [flags] [-- args of the module]

LAUNCH-7 (said-first): what the job asks for and Spark can't give is said, each item, before anything starts.
LAUNCH-8 (nothing-left): packages that were made for the submission are gone when it is over, however it ends.
LAUNCH-11 (executors-stay): the application has no dynamic allocation, whatever is the platform's default, and as many
executors as ranks, unless `--conf` says otherwise: a job says how many machines it has.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..spark.jar import spark_conf
from .fields import fields_of, read, text_of
from .job import KNOWN, TRAINING, Job, add_flags, job_of, overridden, said_of_flags
from .machines import extended
from .packages import for_spark
from .spark_process import SparkProcess, program

_ENDINGS = (".yaml", ".yml", ".json")


def main(argv: Sequence[str]) -> int:
    """Submits the job of this command line, and waits for it; returns spark-submit's exit code, or 2 for a job that
    can't be."""
    own, more = _split(list(argv))
    given = _parser().parse_args(own)
    with SparkProcess() as process, process.folder() as folder:
        try:
            job, command = _prepared(given, more, folder)
            for note in job.notes:
                print(f"phalanx submit: not as the job says: {note}", file=sys.stderr)
            if given.dry_run:
                print(shlex.join(command))
                return 0
            return process.run(command)
        except (OSError, ValueError) as problem:
            print(f"phalanx submit: {problem}", file=sys.stderr)
            return 2


def _prepared(given: argparse.Namespace, more: Sequence[str], folder: Path) -> tuple[Job, list[str]]:
    name, document = _document(given)
    training = overridden(document.get("trainingInput", {}), vars(given))
    machines = extended({} if given.machine_types is None else read(given.machine_types))
    job = job_of(name, training, more, machines)
    job.notes += said_of_flags(vars(given))
    if "labels" in document:
        job.notes.append("labels: a Spark application has a name only")
    if job.packages or given.package_path:
        job.notes.append(
            "packageUris: packages are shipped, not installed: what they require is for the executors' Python to have"
        )
    return job, spark_submit(job, given, folder)


def _document(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The job's name and its file's fields: a name on the command line comes before the file's, as with gcloud."""
    if given.config is None and not _is_file(given.job):
        return given.job, {}
    if given.config is not None and given.job.endswith(_ENDINGS):
        raise ValueError(
            f"there are two job files, {given.job} and {given.config}; with --config the first argument has "
            "to be the job's name"
        )
    path = given.job if given.config is None else given.config
    document = fields_of("the job", read(path), KNOWN)
    document["trainingInput"] = fields_of("trainingInput", document.get("trainingInput", {}), TRAINING)
    if given.config is not None:
        return given.job, document
    return text_of("jobId", document.get("jobId", "")) or Path(path).stem, document


def spark_submit(job: Job, given: argparse.Namespace, folder: Path) -> list[str]:
    """The command that runs the job; what it ships is made in `folder`.

    Raises `ValueError` for what the cluster of `--spark-master` can't have, `OSError` for a package that isn't there.
    """
    conf = spark_conf()
    if job.image and not given.spark_master.startswith("k8s://"):
        raise ValueError(
            f"imageUri {job.image} needs a Spark master on Kubernetes (k8s://...): "
            f"the executors of {given.spark_master} have no container image of their own"
        )
    if job.image:
        conf["spark.kubernetes.executor.container.image"] = job.image
    conf |= _executors_conf(job, given.spark_master)
    for setting in given.conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--conf {setting} has no value; it takes key=value")
        if key == "spark.submit.deployMode" and value != "client":
            raise ValueError(
                f"--conf {setting}: phalanx submit runs the driver on this host, so that the command shows "
                "its output and ends with it"
            )
        conf[key] = f"{conf[key]},{value}" if key in ("spark.jars", "spark.plugins") else value
    # The driver is this Python, whose packages have Phalanx. Spark asks this setting, then spark.pyspark.python, which
    # may be a path on the executors, and only then variables of the environment.
    conf.setdefault("spark.pyspark.driver.python", sys.executable)
    packages = for_spark(job.packages, given.package_path, folder)
    command = [program(), "--master", given.spark_master, "--name", job.name, "--deploy-mode", "client"]
    for key, value in conf.items():
        command += ["--conf", f"{key}={value}"]
    if packages:
        command += ["--py-files", ",".join(packages)]
    gpu = "gpu" if job.machine and job.machine.gpus else "cpu"
    application = Path(__file__).with_name("application.py")
    return [*command, str(application), job.name, str(job.ranks), gpu, job.module, *job.args]


def _executors_conf(job: Job, master: str) -> dict[str, str]:
    """An executor a rank from the beginning to the end; as large as its machine where the job names one: a small heap
    for Spark, the rest for the rank."""
    conf = {"spark.dynamicAllocation.enabled": "false"}
    if not master.startswith(("spark://", "local")):
        conf["spark.executor.instances"] = str(job.ranks)
    if job.machine is None:
        return conf
    cores = job.machine.cores
    conf |= {"spark.executor.cores": str(cores), "spark.task.cpus": str(cores)}
    if master.startswith("spark://"):
        conf["spark.cores.max"] = str(cores * job.ranks)
    if job.machine.memory > 2:
        # A tenth is the system's; a standalone worker counts the heap alone.
        conf["spark.executor.memory"] = "1g"
        conf["spark.executor.memoryOverhead"] = f"{int(job.machine.memory * 1024 * 0.9) - 1024}m"
    if job.machine.gpus:
        conf |= {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}
    return conf


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phalanx submit",
        description="Runs a job of AI Platform Training's on a Spark cluster. After `--` come the module's arguments.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "job", help="the job file, as YAML or JSON; or the job's name, with --config or flags alone"
    )
    parser.add_argument("--config", help="the job file, where the first argument is the job's name")
    parser.add_argument("--spark-master", required=True, help="as spark-submit's --master")
    parser.add_argument("--package-path", help="a folder that is a Python package, here: it is shipped")
    parser.add_argument("--machine-types", help="a file with more machine types, as YAML or JSON")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; may be repeated"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="prints the spark-submit command, starts nothing"
    )
    add_flags(parser)
    return parser


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def _is_file(path: str) -> bool:
    return path.endswith(_ENDINGS) or os.path.isfile(path)
