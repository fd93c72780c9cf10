"""What the facts of one host mean for a run. Pure functions: facts in, findings out.

What only shows beside other hosts is in `cluster_checks.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial

from ..plumbing import address_space
from ..plumbing.describe import size
from .coming_and_going import notice_command, notice_command_in_order
from .finding import Facts, Finding, Need, or_ok, whole

GIB = 1 << 30
MIB = 1 << 20
# A rank that has imported torch and trains next to nothing.
_LEAST_RANK = GIB // 2
# One that trains something.
_SMALL_RANK = 3 * GIB // 2

_TO_GO_ROUND = ", or add the plugin: spark.plugins, on Spark Connect the server's, from Spark 4.0 on"

HostCheck = Callable[[Facts, Need], Iterator[Finding]]


def judged_hosts(hosts: list[Facts], need: Need) -> Iterator[Finding]:
    """All findings that need one host's facts; `hosts` has one task of each host."""
    for check, judge, key, summary in CHECKS:
        looked = [facts for facts in hosts if key in facts]
        if looked:
            found = (finding for facts in looked for finding in judge(facts, need))
            yield from or_ok(found, check, partial(summary, looked, need))
    named = {key: check for check, _, key, _ in CHECKS}
    for facts in hosts:
        for name, problem in facts.get("problems", {}).items():
            yield Finding(
                "warning",
                facts["host"],
                named.get(name, name),
                f"The doctor could not look at this here: {problem}.",
            )


def names(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host = facts["names"], facts["host"]
    own, wrong = found["own"], [a for a in found["not_own"] if not a.startswith("127.")]
    if wrong:
        yield Finding(
            "error",
            host,
            "names",
            f"This host's own name {found['hostname']} resolves to {whole(wrong)}, which is not an address "
            "of this host: connections to it by name end elsewhere.",
            "Correct the name in the DNS or in /etc/hosts of this host; SPARK_LOCAL_IP and "
            "SPARK_LOCAL_HOSTNAME tell Spark another one.",
        )
    elif not own:
        yield Finding(
            "warning",
            host,
            "names",
            f"This host's own name {found['hostname']} has no address ({found.get('own_problem', 'none is known')}). "
            "Phalanx doesn't need it; other libraries ask for it.",
            "Add the name to /etc/hosts of this host.",
        )
    if not found["to_driver"]:
        yield Finding(
            "error",
            host,
            "names",
            f"The driver's name {found['driver']} has no address on this host "
            f"({found.get('to_driver_problem', 'none is known')}): ranks here can't reach the driver by it.",
            "Set spark.driver.host to an address, or to a name that every host knows.",
        )


def driver_link(facts: Facts, need: Need) -> Iterator[Finding]:
    link, host = facts["driver_link"], facts["host"]
    problem = link.get("problem")
    if problem is None:
        return
    means = {
        "timeout": "Nothing answers this host at the driver's port: packets are dropped on the way, as by a firewall.",
        "refused": "The driver's port refuses this host: nothing listens at the address of the driver's name here.",
        "stranger": "Something else answers at the driver's port: the driver's name leads elsewhere from this host.",
    }.get(problem, f"This host can't reach the driver's port: {link['text']}.")
    instead = (
        "A run goes through Spark instead, which is slower."
        if need.other_way
        else "A run's task here has no other route, and fails."
    )
    yield Finding(
        "warning" if need.other_way else "error",
        host,
        "driver",
        f"{means} {instead}",
        "Open the driver's ports to this host, with a fixed spark.phalanx.hub.port (16 ports from it on); or correct "
        f"spark.driver.host{'' if need.other_way else _TO_GO_ROUND}.",
    )


def store_port(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host = facts["store_problem"], facts["host"]
    yield Finding(
        "error",
        host,
        "store port",
        f"None of the 16 ports from {found['port']} on is free here for the job's store: {found['text']}.",
        "Set spark.phalanx.store.port to others, or to 0 for any.",
    )


def torch(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host = facts["torch"], facts["host"]
    where = facts.get("python", {}).get("executable", "the executors' Python")
    if found.get("late"):
        yield Finding(
            "warning",
            host,
            "torch",
            f"import torch is slow ({found['error']}): ranks start late.",
            "Look at the disk that torch is on, and at what else this host does.",
        )
    elif "error" in found and (limited := _limited_import(facts, need)) is not None:
        yield limited
    elif "error" in found:
        yield Finding(
            "error",
            host,
            "torch",
            f"import torch fails in {where}: {found['error']}.",
            "Install torch there, or point spark.pyspark.python at a Python that has it on every host.",
        )
    else:
        if not found.get("distributed", True):
            yield Finding(
                "error",
                host,
                "torch",
                f"The torch of {where} was built without torch.distributed.",
                "Install a torch that has it.",
            )
        if need.use_gpu and not found.get("cuda"):
            yield Finding(
                "error",
                host,
                "CUDA",
                f"The torch of {where} ({found['version']}) was built without CUDA.",
                "Install a torch with CUDA, or ask for use_gpu=False.",
            )


def _limited_import(facts: Facts, need: Need) -> Finding | None:
    """What an import of torch means that failed for want of memory under a limit; None where that is not so."""
    found, limit, of_spark = facts["torch"], *_address_space(facts)
    if limit is None or not address_space.is_spoken_of(found["error"]):
        return None
    means, do = address_space.words(limit, of_spark=of_spark)
    said = f"import torch fails here: {found['error']}. A process {means}"
    if need.jvm and of_spark:
        return Finding(
            "warning",
            facts["host"],
            "torch",
            f"The doctor could not look at torch: {said}. Ranks of the jvm stage are not limited by it.",
            f"To have the doctor look, {do}.",
        )
    return Finding("error", facts["host"], "torch", f"{said}.", f"{do[0].upper()}{do[1:]}.")


def _address_space(facts: Facts) -> tuple[int | None, bool]:
    """How many bytes of addresses a process may map on this host, and whether that is Spark's limit."""
    limits: Facts = facts.get("limits", {})
    limit = limits.get("address_space")
    return limit, address_space.is_sparks(limit, limits.get("address_space_of_spark"))


def python(facts: Facts, need: Need) -> Iterator[Finding]:
    if need.jvm:
        return
    host, where = facts["host"], facts.get("python", {}).get("executable", "the executors' Python")
    missing = [name for name in ("pyarrow", "pandas") if name not in facts["packages"]]
    if missing:
        what = "Spark Connect's tasks go" if need.connect else "DataFrames for the ranks go"
        yield Finding(
            "error" if need.connect else "warning",
            host,
            "packages",
            f"{whole(missing)} is not in {where}, and {what} through Spark's mapInArrow.",
            "Install it there.",
        )


def guard(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host = facts["guard"], facts["host"]
    if need.jvm:
        return  # the jar brings its own
    where = facts.get("python", {}).get("executable", "the executors' Python")
    if not found["path"]:
        yield Finding(
            "error",
            host,
            "Phalanx",
            f"Phalanx can't be imported by {where}, as the python stage needs.",
            "Install it there, or take the jvm stage, whose jar brings it along: "
            "phalanx.configure(SparkSession.builder).",
        )
    elif not found["there"] or not found["runs"]:
        word = "can't be executed" if found["there"] else "is not there"
        yield Finding(
            "error",
            host,
            "Phalanx",
            f"The guard program {found['path']} {word}: no rank starts without it.",
            "Reinstall Phalanx on a file system that is not mounted noexec.",
        )


def memory(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host, ranks = facts["memory"], facts["host"], max(1, facts.get("ranks_here", 1))
    limit, room, why = found["limit"], found["available"], "memory that is free on this host"
    if limit is not None and limit - need.heap < room:
        room = max(0, limit - need.heap)
        why = (
            f"room in the container's limit of {size(limit)} beside the executor's heap of {size(need.heap)}"
        )
    if room < _SMALL_RANK * ranks:
        yield Finding(
            "error" if room < _LEAST_RANK * ranks else "warning",
            host,
            "memory",
            f"{size(room)} is the {why}, for {ranks} rank{'s' * (ranks > 1)}. A rank that has only imported torch "
            f"takes about {size(_LEAST_RANK)}; the kernel kills what doesn't fit.",
            "Give executors more spark.executor.memoryOverhead and less spark.executor.memory, or fewer ranks.",
        )


def shm(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host = facts["shm"], facts["host"]
    problem, free = found.get("problem"), found.get("free", 0)
    if problem is not None or free < 512 * MIB:
        has = f"can't be used: {problem}" if problem else f"has {size(free)} free of {size(found['total'])}"
        yield Finding(
            "error" if problem or free < 32 * MIB else "warning",
            host,
            "/dev/shm",
            f"/dev/shm {has}. Data loaders with workers and NCCL in a host die with a bus error where it is full; "
            "the phalanx backend doesn't use it.",
            "Mount a larger one: an emptyDir with medium Memory in a pod, --shm-size in Docker.",
        )


def disks(facts: Facts, need: Need) -> Iterator[Finding]:
    host, found = facts["host"], facts["disks"]
    for disk in found:
        folder, problem, free = disk["folder"], disk.get("problem"), disk.get("free", 0)
        no_files = disk.get("files", 0) > 0 and disk["files_free"] < 1000
        if problem is not None or free < 256 * MIB or no_files:
            full = disk.get("errno") == errno.ENOSPC or problem is None
            left = f"{size(free)} left" + (f" and room for {disk['files_free']} files" if no_files else "")
            said = f"is full: {left}" if full else f"can't be written to: {problem}"
            yield Finding(
                "error",
                host,
                "disk",
                f"{folder} {said}. Logs, results and shuffles of a run go there.",
                "Make room there, or name another folder: spark.local.dir, SPARK_LOCAL_DIRS of the worker, TMPDIR.",
            )
        elif free < 2 * GIB:
            yield Finding(
                "warning",
                host,
                "disk",
                f"{folder} has {size(free)} left. A rank's log alone may take 1 GiB (spark.phalanx.logs.maxFileBytes).",
                "Make room there.",
            )
    no_exec = [disk["folder"] for disk in found if disk.get("runs") is False]
    if no_exec:
        nowhere = all(disk.get("runs") is not True for disk in found)
        yield Finding(
            "error" if nowhere and need.jvm else "warning",
            host,
            "noexec",
            f"No program can be run from {whole(no_exec)} (mounted noexec). Phalanx takes another folder for its own "
            "where there is one; compilers, as torch.compile's, fail there.",
            "Mount it without noexec, or point TMPDIR and spark.local.dir elsewhere.",
        )


def limits(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host = facts["limits"], facts["host"]
    descriptors, wanted = found["descriptors"], 256 + 16 * need.processes
    if descriptors is not None and descriptors < max(1024, wanted):
        yield Finding(
            "error" if descriptors < min(256, wanted) else "warning",
            host,
            "descriptors",
            f"A process may have {descriptors} files and sockets open; a rank of {need.processes} may need "
            f"{max(1024, wanted)}, and data loaders more.",
            "Raise the limit of the executor's service: ulimit -n, LimitNOFILE, or the container's ulimits.",
        )
    for key, what in (("processes", "RLIMIT_NPROC"), ("pids", "the control group's pids.max")):
        if found[key] is not None and found[key] < 1024:
            yield Finding(
                "warning",
                host,
                "processes",
                f"{what} allows {found[key]} processes and threads; ranks with data loaders take hundreds.",
                "Raise it: ulimit -u, TasksMax, or the pod's limit of pids.",
            )
    space, of_spark = _address_space(facts)
    if space is not None and space < 64 * GIB and not (need.jvm and of_spark):
        means, do = address_space.words(space, of_spark=of_spark)
        yield Finding(
            "error" if need.use_gpu or space < 4 * GIB else "warning",
            host,
            "address space",
            f"A rank {means}. It maps far more than it uses: torch a few GiB, CUDA tens of them.",
            f"{do[0].upper()}{do[1:]}.",
        )


def kernel(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host = facts["kernel"], facts["host"]
    missing = found["missing"]
    if "error" in missing:
        yield Finding(
            "warning", host, "kernel", f"What the guard needs could not be tried: {missing['error']}."
        )
        return
    if missing:
        refused = whole([f"{name} ({why})" for name, why in missing.items()])
        sandbox = (
            "a seccomp filter is active here" if found["seccomp"] else "no seccomp filter is active here"
        )
        yield Finding(
            "error",
            host,
            "kernel",
            f"The guard, which ends every process of a rank, is refused {refused}; {sandbox}.",
            "Allow these system calls in the container's seccomp profile, or use a kernel from 5.4 on.",
        )


def cpu(facts: Facts, need: Need) -> Iterator[Finding]:
    found, host = facts["cpu"], facts["host"]
    if found["quota"] is not None and found["quota"] < min(1.0, found["cores"]):
        yield Finding(
            "warning",
            host,
            "processor",
            f"The container here gets {found['quota']:.2g} of a core, and all ranks wait for the slowest one.",
            "Raise the container's limit of processor time.",
        )


def gpus(facts: Facts, need: Need) -> Iterator[Finding]:
    if not need.use_gpu:
        return
    found, host = facts["gpus"], facts["host"]
    if not found["gpus"]:
        why = found.get("problem") or (
            "nvidia-smi is not there" if found["devices"] else "there is no /dev/nvidia*"
        )
        yield Finding(
            "error",
            host,
            "GPUs",
            f"No GPU can be used here: {why}.",
            "Install the driver, give the container its GPUs, or ask for use_gpu=False.",
        )
        return
    seen = facts.get("torch", {}).get("devices")
    if seen == 0 and facts["torch"].get("cuda"):
        yield Finding(
            "error",
            host,
            "CUDA",
            f"nvidia-smi has {len(found['gpus'])} GPUs, but torch (CUDA {facts['torch']['cuda']}) sees none: the "
            f"driver ({found['gpus'][0].get('driver_version', '?')}) may be too old for it, or CUDA_VISIBLE_DEVICES "
            f"({found['visible']}) hides them.",
            "Install a newer driver, or a torch for an older CUDA.",
        )
    if not facts["task_gpus"]:
        yield Finding(
            "error",
            host,
            "GPUs",
            "Spark gave the task here no GPU.",
            "Set spark.executor.resource.gpu.amount, spark.task.resource.gpu.amount and the discovery script.",
        )
    for gpu in found["gpus"]:
        if gpu.get("compute_mode") == "Prohibited":
            yield Finding(
                "error",
                host,
                "GPUs",
                f"GPU {gpu['index']} is in compute mode Prohibited: no process can use it.",
                f"nvidia-smi -i {gpu['index']} -c DEFAULT",
            )
        used, total = gpu.get("memory.used", ""), gpu.get("memory.total", "")
        if used.isdigit() and total.isdigit() and int(used) > int(total) / 5:
            yield Finding(
                "warning",
                host,
                "GPUs",
                f"{used} of {total} MiB of GPU {gpu['index']} are already taken by other processes.",
                "End what runs there.",
            )


def _least(hosts: list[Facts], key: str, field: str) -> str:
    return size(min(facts[key].get(field) or 0 for facts in hosts))


def _topology(hosts: list[Facts], need: Need) -> str:
    if not need.use_gpu:
        return "The run asks for no GPU."
    first = hosts[0]["gpus"]
    links = "by NVLink" if " NV" in first.get("topology", "") else "by PCIe"
    joined = f", connected {links}" if len(first["gpus"]) > 1 else ""
    return f"{len(first['gpus'])} of {first['gpus'][0]['name']} on each host{joined}."


CHECKS: list[tuple[str, HostCheck, str, Callable[[list[Facts], Need], str]]] = [
    ("names", names, "names", lambda h, n: "Every host's own name and the driver's resolve correctly."),
    (
        "driver",
        driver_link,
        "driver_link",
        lambda h, n: "Every host reaches the driver's port, as a run would.",
    ),
    ("store port", store_port, "store_problem", lambda h, n: ""),
    (
        "torch",
        torch,
        "torch",
        lambda h, n: f"torch {h[0]['torch'].get('version')} can be imported on every host.",
    ),
    ("packages", python, "packages", lambda h, n: "What Spark's Python workers need is there."),
    ("Phalanx", guard, "guard", lambda h, n: "Every host has Phalanx, or gets it by the jar."),
    ("GPUs", gpus, "gpus", _topology),
    (
        "memory",
        memory,
        "memory",
        lambda h, n: f"{_least(h, 'memory', 'available')} or more are free on every host.",
    ),
    ("/dev/shm", shm, "shm", lambda h, n: f"{_least(h, 'shm', 'free')} or more are free on every host."),
    (
        "disk",
        disks,
        "disks",
        lambda h, n: "Spark's folders and those for temporary files have room and run programs.",
    ),
    ("descriptors", limits, "limits", lambda h, n: "Descriptors, processes and address space are enough."),
    ("kernel", kernel, "kernel", lambda h, n: "The kernels allow what the guard needs."),
    ("notice command", notice_command, "notice", notice_command_in_order),
    ("processor", cpu, "cpu", lambda h, n: "No container's quota is below a core."),
]
