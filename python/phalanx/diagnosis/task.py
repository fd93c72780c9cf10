"""One task of the doctor's stage: looks at its host, and meets the others.

It travels to the executors by value and uses the standard library and Spark's own Python only.

DOCTOR-11 (early): what a task has found it leaves with the driver at once, if it can connect there. So the facts of a
host are not lost with the stage, where another host ends that or holds it up.
DOCTOR-12 (few-peers): a host connects to all others where they are 16 or fewer, else to those 1, 2, 4, 8, ... places
on.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from functools import partial
from typing import Any, NamedTuple

from .links import Listener, measure, meet, report
from .notice_probe import run_notice_command
from .probe import addresses, addresses_of, gpus, interface, machine, measured, own_address, torch

_ALL_PEERS = 16
_ALL_MEASURED = 6
_CONNECT_S = 3.0
# How long before the end a task is to be ready.
_RETURN_S = 2.0
# How long what is usually over at once may take.
_SOON_S = 10.0


class Orders(NamedTuple):
    """What the driver tells every task."""

    secret: bytes
    driver: str
    """The driver's address or name, as a job's tasks are told it."""
    port: int
    store_port: int
    seconds: float
    """How long a task may take."""
    use_gpu: bool
    barrier: bool
    """Whether all tasks run at the same time, and so can meet."""
    notice_command: str = ""
    """The program that says when a host is to go; empty for none."""


def examined(orders: Orders) -> str:
    """Runs in a task of Spark's; returns all that it found, as JSON."""
    from pyspark import BarrierTaskContext, TaskContext

    context: Any = BarrierTaskContext.get() if orders.barrier else TaskContext.get()
    return json.dumps(_Examination(orders, context).facts())


def peers_of(place: int, count: int) -> list[int]:
    """The places to which the host at this place connects, of `count` in a ring."""
    if count <= _ALL_PEERS:
        return [(place + step) % count for step in range(1, count)]
    return [(place + (1 << power)) % count for power in range((count - 1).bit_length())]


def measured_peers_of(place: int, count: int) -> list[int]:
    """Those among them that it sends to for a measurement."""
    if count <= _ALL_MEASURED:
        return peers_of(place, count)
    return list(dict.fromkeys((place + (1 << power)) % count for power in range((count - 1).bit_length())))


class _Examination:
    def __init__(self, orders: Orders, context: Any) -> None:
        self._orders = orders
        self._context = context
        self._until = time.monotonic() + orders.seconds
        self._found: dict[str, Any] = {"partition": context.partitionId(), "host": self._sparks_name()}

    def facts(self) -> dict[str, Any]:
        orders, found = self._orders, self._found
        # A resolver that doesn't answer must not hold up the others.
        own, _ = measured({"address": lambda: own_address(orders.driver, found["host"])}, _CONNECT_S)
        found["address"] = own.get("address", "127.0.0.1")
        if not orders.barrier:  # no other task tells how Spark calls this host
            found["host"] = found["address"]
        found["interface"] = interface(found["address"])
        gpu = self._context.resources().get("gpu")
        found["task_gpus"] = [] if gpu is None else list(gpu.addresses)
        self._tell_driver()
        with contextlib.ExitStack() as open_listeners:
            listeners = [Listener(found["address"], orders.secret, found["partition"])]
            open_listeners.enter_context(listeners[0])
            if orders.store_port:
                try:
                    store = Listener(
                        found["address"], orders.secret, found["partition"], wanted=orders.store_port
                    )
                    listeners.append(open_listeners.enter_context(store))
                except OSError as problem:
                    found["store_problem"] = {
                        "port": orders.store_port,
                        "text": problem.strerror or str(problem),
                    }
            self._meet_all([listener.port for listener in listeners])
        return found

    def _meet_all(self, ports: list[int]) -> None:
        found = self._found
        told = {key: found[key] for key in ("partition", "host", "address")}
        everyone = self._gather({**told, "ports": ports, "addresses": addresses()})
        found["everyone"] = [[one["partition"], one["host"]] for one in everyone]
        leads = first_of_each_host(everyone)
        places = [lead["partition"] for lead in leads]
        place = places.index(found["partition"]) if found["partition"] in places else None
        found["lead"] = place is not None
        if place is not None:
            self._look_around()
            found["links"] = self._links_to([leads[at] for at in peers_of(place, len(leads))])
            self._tell_driver()
        self._gather({})  # so that what is measured is the network, and not an import of torch beside it
        if place is not None:
            reached = {link["to"] for link in found["links"] if "problem" not in link}
            others = [leads[at] for at in measured_peers_of(place, len(leads))]
            found["speeds"] = [
                {"to": other["host"], **self._speed_to(other)} for other in others if other["host"] in reached
            ]
        self._gather({})  # until then the listeners are needed

    def _look_around(self) -> None:
        folders = [
            folder
            for name in ("SPARK_LOCAL_DIRS", "LOCAL_DIRS")
            for folder in os.environ.get(name, "").split(",")
            if folder
        ]
        # What hangs here, a disk or a resolver, leaves the others their time.
        soon = max(1.0, min(_SOON_S, self._left() * 0.25))
        probes = machine([*folders, os.getcwd()], self._orders.driver, soon)
        if command := self._orders.notice_command:
            probes["notice"] = partial(run_notice_command, command)
        quick, problems = measured(probes, soon + 1)
        self._found |= {**quick, "problems": problems}
        self._tell_driver()
        seconds = max(1.0, self._left() * 0.6)
        slow, late = measured({"torch": lambda: torch(seconds), "gpus": lambda: gpus(seconds)}, seconds + 1)
        self._found |= {**slow, "problems": {**problems, **late}}

    def _links_to(self, others: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seconds = max(0.5, min(_CONNECT_S, self._left() / 4))

        def link(other: dict[str, Any], port: int) -> dict[str, Any]:
            name = other["host"]
            answer = {"to": name, "address": other["address"], "port": port, "addresses": other["addresses"]}
            answer |= meet(other["address"], port, self._orders.secret, seconds)
            if port == other["ports"][0]:
                try:
                    answer["name_leads_to"] = addresses_of(name)
                except OSError as problem:
                    answer |= {"name_leads_to": [], "name_problem": str(problem)}
            return answer

        wanted = [(other, port) for other in others for port in other["ports"]]
        found, problems = measured(
            {f"{other['host']} {port}": partial(link, other, port) for other, port in wanted}, 2 * seconds + 1
        )
        late = [
            {"to": other["host"], "address": other["address"], "port": port, "problem": "timeout",
             "text": problems[f"{other['host']} {port}"]}
            for other, port in wanted
            if f"{other['host']} {port}" in problems
        ]  # fmt: skip
        return [*found.values(), *late]

    def _speed_to(self, other: dict[str, Any]) -> dict[str, Any]:
        if self._left() < 1:
            return {"problem": "late", "text": "no time was left to measure it"}
        return measure(other["address"], other["ports"][0], self._orders.secret, min(8.0, self._left()))

    def _tell_driver(self) -> None:
        orders, before = self._orders, self._found.get("driver_link")
        if before is not None and before.get("problem") == "timeout":
            return  # once is enough: each try costs seconds, of which others are in need
        seconds = max(0.5, min(_CONNECT_S, self._left() / 4))
        told, problems = measured(
            {"link": lambda: report(orders.driver, orders.port, orders.secret, seconds, self._found)},
            seconds + 2,
        )
        link = told.get("link") or {"problem": "timeout", "text": problems["link"]}
        if "left" in link:  # what Spark took to start this task is gone already
            self._until = min(self._until, time.monotonic() + link.pop("left") - _RETURN_S)
        # Of several looks at the driver's clock the quickest is the best.
        if before is None or "problem" in before or link.get("error", 1e9) < before["error"]:
            self._found["driver_link"] = link

    def _gather(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        if not self._orders.barrier:
            return [told]
        return [dict(json.loads(text)) for text in self._context.allGather(json.dumps(told))]

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _sparks_name(self) -> str:
        """The name or address by which Spark knows this host."""
        if not self._orders.barrier:
            return socket.gethostname()
        address: str = self._context.getTaskInfos()[self._context.partitionId()].address
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
            host = address
        return host.strip("[]")


def first_of_each_host(everyone: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first task of each host, in the order of partitions."""
    leads: dict[str, dict[str, Any]] = {}
    for told in sorted(everyone, key=lambda told: int(told.get("partition", 0))):
        leads.setdefault(told["host"], told)
    return list(leads.values())
