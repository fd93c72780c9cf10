"""From what the stage brought back to findings: the only place where the doctor judges, with the two files of checks.

DOCTOR-4 (no-silence): a host that a task was on, and that did not say what it found, is an error that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from ..plumbing.describe import size
from .cluster_checks import judged_cluster
from .executors import Executor
from .finding import Facts, Finding, Need, whole
from .host_checks import judged_hosts
from .stage import Seen


def judged(seen: Seen, need: Need, executors: Iterable[str] = ()) -> list[Finding]:
    """All findings of the stage; `executors` are the hosts that have one, as far as Spark tells."""
    hosts = one_of_each_host(seen.facts)
    found = list(stage(seen))
    found += unseen(seen, executors)
    found += overhead(need)
    found += judged_hosts(hosts, need)
    found += judged_cluster(hosts, need)
    return found


def one_of_each_host(facts: list[Facts]) -> list[Facts]:
    """The task of each host that looked around there, with how many tasks are there."""
    count = Counter(task["host"] for task in facts)
    leads: dict[str, Facts] = {}
    for task in sorted(facts, key=lambda task: (not task.get("lead"), task["partition"])):
        leads.setdefault(task["host"], {**task, "ranks_here": count[task["host"]]})
    return list(leads.values())


def stage(seen: Seen) -> Iterator[Finding]:
    """How the stage itself went."""
    if seen.problem is not None:
        for host in seen.problem_hosts or [""]:
            yield Finding(
                "error",
                host,
                "Spark stage",
                f"A task failed before it could look: {seen.problem}. A run would fail as this one did.",
                "Correct what it names; the executor's log on that host says more.",
            )
        missing = seen.tasks - len(seen.facts)
        if missing:
            yield Finding(
                "warning",
                "",
                "hosts",
                f"{missing} of {seen.tasks} tasks did not report before the stage failed: their hosts are unknown.",
                "Run the doctor again when the failure is corrected.",
            )
    elif seen.barrier and not seen.late:
        yield Finding(
            "ok", "", "Spark stage", f"Spark started {seen.tasks} tasks at the same time, as a run needs."
        )


def unseen(seen: Seen, executors: Iterable[str]) -> Iterator[Finding]:
    """The hosts that did not answer, and those on which there was no task."""
    hosts = {int(partition): host for task in seen.facts for partition, host in task.get("everyone", [])}
    hosts |= {int(task["partition"]): task["host"] for task in seen.facts}
    there = {int(task["partition"]) for task in seen.facts}
    looked = {task["host"] for task in seen.facts if "torch" in {**task, **task.get("problems", {})}}
    silent = {hosts[p] for p in hosts if p not in there} | {task["host"] for task in seen.facts} - looked
    executors = set(executors)
    unknown = sorted(executors - set(hosts.values()))
    if not seen.started:
        yield Finding(
            "error",
            "",
            "answer",
            f"None of {seen.tasks} tasks that are to run at the same time had started within {seen.waited:.0f} s, "
            "though Spark had slots for them: another job has them, or executors come and go.",
            "See Spark's web page for what runs, and what ended.",
        )
    elif seen.late:
        for host in sorted(silent):
            yield Finding(
                "error",
                host,
                "answer",
                f"The task on this host was not done within {seen.seconds:.0f} s.",
                "See the executor's log there; `phalanx doctor --timeout` gives more time.",
            )
        if len(hosts) < seen.tasks:
            missing = seen.tasks - len(hosts)
            where = f"; {whole(unknown)} had not answered" if unknown else ""
            yield Finding(
                "error",
                unknown[0] if len(unknown) == 1 else "",
                "answer",
                f"{missing} of {seen.tasks} tasks did not report within {seen.seconds:.0f} s{where}. They "
                "did not start, or can't reach the driver.",
                "See Spark's web page for what they wait for, and the executors' logs; `phalanx doctor --timeout` "
                "gives more time.",
            )
    elif seen.problem is None:
        for host in sorted(silent):
            yield Finding("error", host, "answer", "The task on this host did not report what it found.", "")
        if unknown:
            yield Finding(
                "warning",
                "",
                "hosts",
                f"No task was on {whole(unknown)}: these hosts were not looked at.",
                f"phalanx doctor --num-processes {seen.tasks + len(unknown)} looks at more of them.",
            )


def overhead(need: Need) -> Iterator[Finding]:
    """Whether the ranks fit into the containers that Spark asks for."""
    if need.overhead is None:
        return
    wanted = need.executor_ranks << 30
    if need.overhead < wanted:
        yield Finding(
            "warning",
            "",
            "overhead",
            f"An executor's container has {size(need.overhead)} beside the heap, for {need.executor_ranks} ranks: "
            "model, gradients, optimizer, activations. Spark's default, a tenth of the heap, is for no training.",
            f"Set spark.executor.memoryOverhead to {size(wanted)} at least; the heap itself can be 1g.",
        )
    else:
        yield Finding("ok", "", "overhead", f"{size(need.overhead)} beside the heap of each executor.")


def lost_executors(known: Iterable[Executor], before: Collection[str]) -> Iterator[Finding]:
    """Executors that ended while the application ran; `before` are the numbers of those that had when this began."""
    ended: dict[str, list[Executor]] = {}
    for one in known:
        if not one.active:
            ended.setdefault(one.host, []).append(one)
    for host, gone in ended.items():
        just_now = any(one.number not in before for one in gone)
        yield Finding(
            "error" if just_now else "warning",
            host,
            "executors",
            f"{len(gone)} executor{'s' * (len(gone) > 1)} ended here since the application began, "
            f"{'the last one just now' if just_now else 'before this'}: {gone[-1].reason}.",
            "See the executor's log on that host: a full disk, memory and jars are the usual reasons.",
        )
