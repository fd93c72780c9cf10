"""A job: the file `job.yaml` as AI Platform Training takes it, joined with the flags of its command.

https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs#TrainingInput

LAUNCH-9 (nothing-passed-over): what can't be honoured is in `notes`, each item, and what nobody knows is an error.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .fields import count_of, fields_of, text_of, texts_of
from .machines import TIERS, Machine

# Fields that have a meaning there and none on a Spark cluster, with the reason.
UNHONOURED = {
    "region": "ranks run where the Spark cluster is",
    "runtimeVersion": "ranks have the Python and torch of the executors",
    "pythonVersion": "ranks have the Python of the executors",
    "scheduling": "Spark's own limits hold",
    "hyperparameters": "there is one trial: submit each by itself",
    "network": "ranks are in the network of the Spark cluster",
    "serviceAccount": "executors have the account that the cluster gives them",
    "encryptionConfig": "data are encrypted as the cluster encrypts them",
    "enableWebAccess": "executors have no shell",
    "useChiefInTfConfig": "there is no TF_CONFIG",
    "parameterServerType": "PyTorch has no parameter servers",
    "parameterServerCount": "PyTorch has no parameter servers",
    "parameterServerConfig": "PyTorch has no parameter servers",
    "evaluatorType": "PyTorch has no evaluators",
    "evaluatorCount": "PyTorch has no evaluators",
    "evaluatorConfig": "PyTorch has no evaluators",
}
# Flags that are no fields and change nothing here, with the reason.
_FLAGS_UNHONOURED = {
    "--staging-bucket": "packages go to the executors from here",
    "--labels": "a Spark application has a name only",
    "--async": "the command waits for the end",
}
_SWITCHES = ("--async", "--enable-web-access")
KNOWN = {"trainingInput", "jobId", "labels"}
_HONOURED = (
    "scaleTier",
    "masterType",
    "masterConfig",
    "workerType",
    "workerCount",
    "workerConfig",
    "packageUris",
    "pythonModule",
    "args",
    "jobDir",
)
TRAINING = (*_HONOURED, *UNHONOURED)
_REPLICA_UNHONOURED = ("containerCommand", "containerArgs", "diskConfig", "tpuTfVersion")
_REPLICA = ("imageUri", "acceleratorConfig", *_REPLICA_UNHONOURED)


@dataclass
class Job:
    """A job that can run: `ranks` of `module` with `args`, each on a machine of its own."""

    name: str
    module: str
    ranks: int
    args: list[str]
    packages: list[str] = field(default_factory=list)
    machine: Machine | None = None
    image: str = ""
    """The executors'; the driver runs where the command does, and has none."""
    notes: list[str] = field(default_factory=list)
    """What is not as the job says, a sentence each."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `gcloud ai-platform jobs submit training`, but those that the command has itself."""
    flags: list[tuple[str, str]] = [
        ("--scale-tier", "scaleTier"),
        ("--master-machine-type", "masterType"),
        ("--master-image-uri", "masterConfig.imageUri"),
        ("--master-accelerator", "masterConfig.acceleratorConfig"),
        ("--worker-machine-type", "workerType"),
        ("--worker-count", "workerCount"),
        ("--worker-image-uri", "workerConfig.imageUri"),
        ("--worker-accelerator", "workerConfig.acceleratorConfig"),
        ("--module-name", "pythonModule"),
        ("--packages", "packageUris"),
        ("--job-dir", "jobDir"),
        ("--region", "region"),
        ("--runtime-version", "runtimeVersion"),
        ("--python-version", "pythonVersion"),
        ("--service-account", "serviceAccount"),
        ("--network", "network"),
        ("--enable-web-access", "enableWebAccess"),
        ("--use-chief-in-tf-config", "useChiefInTfConfig"),
        ("--parameter-server-machine-type", "parameterServerType"),
        ("--parameter-server-count", "parameterServerCount"),
        ("--parameter-server-image-uri", "parameterServerConfig"),
        ("--parameter-server-accelerator", "parameterServerConfig"),
        *((f"--kms-{part}", "encryptionConfig") for part in ("key", "keyring", "location", "project")),
    ]
    for flag, path in flags:
        _add_flag(parser, flag, f"field:{path}", f"as {path}")
    for flag, why in _FLAGS_UNHONOURED.items():
        _add_flag(parser, flag, f"flag:{flag}", f"changes nothing: {why}")
    parser.add_argument("--stream-logs", action="store_true", help="the ranks' output is always shown")


def _add_flag(parser: argparse.ArgumentParser, flag: str, dest: str, what: str) -> None:
    if flag in _SWITCHES:
        parser.add_argument(flag, dest=dest, action="store_const", const="true", help=what)
    else:
        parser.add_argument(flag, dest=dest, metavar="VALUE", help=what)


def said_of_flags(flags: Mapping[str, Any]) -> list[str]:
    """What is not as flags say that are no fields, a sentence each."""
    return [
        f"{flag}: {why}" for flag, why in _FLAGS_UNHONOURED.items() if flags.get(f"flag:{flag}") is not None
    ]


def overridden(training: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """`trainingInput` with the flags that were given in place of its fields.

    Raises `ValueError` for a flag, or a part of the job that it belongs to, which is something else.
    """
    joined = copy.deepcopy(dict(training))
    for dest, value in flags.items():
        kind, _, path = dest.partition(":")
        if kind != "field" or value is None:
            continue
        part, _, last = path.rpartition(".")
        fields = fields_of(part, joined.setdefault(part, {}), _REPLICA) if part else joined
        if last == "packageUris":
            value = value.split(",")
        if last == "acceleratorConfig":
            value = {"count": 1} | _by_name(path, value)
        fields[last] = value
    return joined


def _by_name(path: str, value: str) -> dict[str, str]:
    parts = [part.partition("=") for part in value.split(",")]
    if not all(equals for _, equals, _ in parts):
        raise ValueError(f"{path} is {value!r}; the flag takes count=2,type=nvidia-tesla-t4")
    return {key: of_key for key, _, of_key in parts}


def job_of(
    name: str, training: Mapping[str, Any], more_args: Sequence[str], machines: Mapping[str, Machine]
) -> Job:
    """The job that `trainingInput` describes.

    Raises `ValueError` with a sentence on what is missing, unknown or contradictory.
    """
    fields_of("trainingInput", training, TRAINING)
    module = text_of("pythonModule", training.get("pythonModule", ""))
    if not module:
        raise ValueError(
            "the job has no pythonModule (--module-name): Spark's executors run a Python module, "
            "they don't run an image's own command"
        )
    workers = count_of("workerCount", training.get("workerCount", 0))
    notes = [f"{key}: {why}" for key, why in UNHONOURED.items() if key in training]
    master = _replica("masterConfig", training, notes)
    worker = _replica("workerConfig", training, notes)
    if not workers:
        notes += [f"{key}: workerCount is 0" for key in ("workerType", "workerConfig") if key in training]
        worker = _Replica()
    if worker.image and master.image != worker.image:
        notes.append(
            "masterConfig.imageUri: executors are equal, and rank 0 is in one: it has the workers' image"
        )
    args = texts_of("args", training.get("args", [])) + list(more_args)
    job_dir = text_of("jobDir", training.get("jobDir", ""))
    return Job(
        name=name,
        module=module,
        ranks=1 + workers,
        # As AI Platform hands the folder to the module.
        args=["--job-dir", job_dir, *args] if job_dir else args,
        packages=texts_of("packageUris", training.get("packageUris", [])),
        machine=_machine(training, [master, worker][: 1 + bool(workers)], machines, notes),
        image=worker.image or master.image,
        notes=notes,
    )


@dataclass
class _Replica:
    """What `masterConfig` or `workerConfig` asks for."""

    image: str = ""
    gpus: int = 0


def _replica(part: str, training: Mapping[str, Any], notes: list[str]) -> _Replica:
    fields = fields_of(part, training.get(part, {}), _REPLICA)
    notes += [
        f"{part}.{key}: Spark starts the executors, and their disks and commands are the cluster's"
        for key in _REPLICA_UNHONOURED
        if key in fields
    ]
    replica = _Replica(text_of(f"{part}.imageUri", fields.get("imageUri", "")))
    if "acceleratorConfig" in fields:
        where = f"{part}.acceleratorConfig"
        accelerators = fields_of(where, fields["acceleratorConfig"], ("count", "type"))
        if "count" not in accelerators:
            raise ValueError(f"{where} has no count")
        replica.gpus = count_of(f"{where}.count", accelerators["count"])
        if "type" in accelerators:
            notes.append(f"{where}.type: the GPUs are the cluster's")
    return replica


def _machine(
    training: Mapping[str, Any],
    replicas: Sequence[_Replica],
    machines: Mapping[str, Machine],
    notes: list[str],
) -> Machine | None:
    """The machine of every rank: executors are equal, so the larger of the master's and the workers'."""
    tier = text_of("scaleTier", training.get("scaleTier", "CUSTOM"))
    types = [text_of(key, training.get(key, "")) for key in ("masterType", "workerType")][: len(replicas)]
    gpus = [replica.gpus for replica in replicas]
    if tier != "CUSTOM":
        if tier not in TIERS:
            raise ValueError(
                f"scaleTier {tier} is not supported: set CUSTOM, or for one machine {' or '.join(TIERS)}"
            )
        if len(replicas) > 1 or any(types) or any(gpus):
            raise ValueError(
                f"scaleTier {tier} is one machine; workers, machine types and accelerators need CUSTOM"
            )
        return TIERS[tier]
    for kind in types:
        if kind and kind not in machines:
            raise ValueError(
                f"unknown machine type {kind}; describe it with --machine-types FILE: "
                f'{{"{kind}": {{"cores": 8, "memory": 30, "gpus": 0}}}}'
            )
    found = [machines[kind] for kind in types if kind]
    if not found and not any(gpus):
        return None
    machine = Machine(
        max((m.cores for m in found), default=1),
        max((m.memory for m in found), default=0),
        max([*(m.gpus for m in found), *gpus]),
    )
    if len(set(types)) > 1 or len(set(gpus)) > 1:
        notes.append("masterType and workerType differ: Spark's executors are equal, and all have the larger")
    if machine.gpus > 1:
        notes.append(f"a rank has one GPU of its machine's {machine.gpus}: workerCount says how many ranks")
    return machine
