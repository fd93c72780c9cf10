"""torch's own store client against Phalanx's server, and against torch's: every call must behave the same.

Each test runs once with either server, so what it asserts of ours is what torch's does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support.tiers import whole

dist = pytest.importorskip("torch.distributed")
native = pytest.importorskip("phalanx._native")

pytestmark = pytest.mark.timeout(60)

HOST = "127.0.0.1"
LONG = timedelta(seconds=30)
SHORT = timedelta(milliseconds=100)
MAX_VALUE_BYTES = 8 * 1024 * 1024

Store = Any  # torch.distributed.TCPStore, which its stubs don't export
Connect = Callable[[], Store]


def phalanx_server() -> Generator[int, None, None]:
    server = native.StoreServer(host=HOST, port=0)
    try:
        yield server.port
    finally:
        server.close()


def torch_server() -> Generator[int, None, None]:
    server = dist.TCPStore(HOST, 0, None, True, wait_for_workers=False)
    yield server.port


SERVERS = {"phalanx": phalanx_server, "torch": torch_server}


@pytest.fixture(params=["phalanx", pytest.param("torch", marks=whole("torch's own store"))])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    serve = SERVERS[request.param]()
    port = next(serve)
    yield lambda: dist.TCPStore(HOST, port, None, False, timeout=LONG)
    serve.close()


def in_thread(call: Callable[[], object]) -> Callable[[], object]:
    """Starts the call; the result returns what it returned."""
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.append(call()), daemon=True)
    thread.start()

    def join() -> object:
        thread.join(LONG.total_seconds())
        assert outcome, "the call did not return"
        return outcome[0]

    return join


def test_set_and_get(connect: Connect) -> None:
    one, two = connect(), connect()
    one.set("key", "value")
    assert two.get("key") == b"value"
    one.set("key", "")
    assert two.get("key") == b""
    one.set("", "the empty key")
    assert two.get("") == b"the empty key"
    one.set("ключ", "значение")
    assert two.get("ключ") == "значение".encode()


@pytest.mark.parametrize("how", ["set", "append"])
def test_get_waits_for_another_client(connect: Connect, how: str) -> None:
    waiter, other = connect(), connect()
    value = in_thread(lambda: waiter.get("late"))
    getattr(other, how)("late", "here")
    assert value() == b"here"


def test_the_largest_value(connect: Connect) -> None:
    store = connect()
    value = "x" * MAX_VALUE_BYTES
    store.set("big", value)
    assert store.get("big") == value.encode()


def test_add_counts_across_clients(connect: Connect) -> None:
    one, two = connect(), connect()
    assert one.add("n", 5) == 5
    assert two.add("n", -7) == -2
    assert one.get("n") == b"-2"
    one.set("n", "40 of them")
    assert two.add("n", 2) == 42


def test_add_to_text_ends_the_connection_only(connect: Connect) -> None:
    one, two = connect(), connect()
    one.set("text", "x")
    with pytest.raises(dist.DistNetworkError, match="Failed to recv, got 0 bytes"):
        one.add("text", 1)
    assert two.get("text") == b"x"


def test_check(connect: Connect) -> None:
    store = connect()
    store.set("a", "")
    assert store.check(["a"])
    assert store.check(["a", "a"])
    assert not store.check(["a", "b"])
    assert store.check([])


def test_wait_for_many_keys(connect: Connect) -> None:
    waiter, setter = connect(), connect()
    keys = [f"k{n}" for n in range(500)]
    waited = in_thread(lambda: waiter.wait([*keys, "k0"], LONG))
    for key in keys:
        setter.set(key, "")
    assert waited() is None
    waiter.wait(keys)


def test_compare_set(connect: Connect) -> None:
    store = connect()
    assert store.compare_set("k", "never had it", "new") == b"never had it"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "first", "second") == b"second"
    assert store.compare_set("k", "first", "third") == b"second"
    assert store.compare_set("k", "", "third") == b"second"
    assert store.get("k") == b"second"


def test_keys_are_counted_listed_and_deleted(connect: Connect) -> None:
    store = connect()
    assert store.num_keys() == 0
    assert store.list_keys() == []
    store.set("a", "1")
    store.add("b", 1)
    store.queue_push("q", "not a key")
    assert store.num_keys() == 2
    assert sorted(store.list_keys()) == ["a", "b"]
    assert store.delete_key("a")
    assert not store.delete_key("a")
    assert not store.delete_key("q")
    assert store.list_keys() == ["b"]
    assert not store.check(["a"])


def test_append(connect: Connect) -> None:
    store = connect()
    store.append("k", "ab")
    store.append("k", "")
    store.append("k", "cd")
    assert store.get("k") == b"abcd"


def test_multi_set_and_multi_get(connect: Connect) -> None:
    one, two = connect(), connect()
    keys = [f"k{n}" for n in range(300)]
    values = [str(n) * (n % 7) for n in range(300)]
    got = in_thread(lambda: two.multi_get(keys))
    one.multi_set(keys, values)
    assert got() == [value.encode() for value in values]
    one.multi_set([], [])
    assert one.multi_get([]) == []


def test_queues_are_first_in_first_out(connect: Connect) -> None:
    one, two = connect(), connect()
    assert one.queue_len("q") == 0
    one.queue_push("q", "1")
    one.queue_push("q", "2")
    one.queue_push("q", "")
    assert one.queue_len("q") == 3
    assert one.check(["q"])
    assert two.queue_pop("q") == b"1"
    assert two.queue_pop("q", block=False) == b"2"
    assert two.queue_pop("q") == b""
    assert not one.check(["q"])
    with pytest.raises(dist.QueueEmptyError, match="queue is empty"):
        two.queue_pop("q", block=False)


def popped_from(client: Store) -> bytes:
    """torch's client waits by one request and pops by another: who came in between may have had the value."""
    while True:
        with contextlib.suppress(dist.QueueEmptyError):
            return bytes(client.queue_pop("q"))


def test_a_push_reaches_one_of_the_waiting_clients(connect: Connect) -> None:
    poppers, pusher = [connect(), connect()], connect()
    popped = [in_thread(partial(popped_from, popper)) for popper in poppers]
    pusher.queue_push("q", "1")
    pusher.queue_push("q", "2")
    assert {join() for join in popped} == {b"1", b"2"}
    assert pusher.queue_len("q") == 0


def test_barrier(connect: Connect) -> None:
    stores = [connect() for _ in range(4)]
    passed = [in_thread(partial(store.barrier, "b", 4, LONG)) for store in stores[1:]]
    stores[0].barrier("b", 4, LONG)
    assert [join() for join in passed] == [None] * 3
    stores[0].barrier("alone", 1)
    assert stores[0].get("b") == b"4"


def test_clone_has_its_own_connection(connect: Connect) -> None:
    store = connect()
    clone = store.clone()
    value = in_thread(lambda: clone.get("late"))
    store.set("late", "here")
    assert value() == b"here"


def test_what_the_client_knows_of_the_store(connect: Connect) -> None:
    store = connect()
    assert store.has_extended_api()
    assert store.libuvBackend
    assert store.host == HOST
    store.set_timeout(SHORT)
    assert store.timeout == SHORT


def test_prefix_store(connect: Connect) -> None:
    one, two = connect(), connect()
    inner = dist.PrefixStore("outer", dist.PrefixStore("inner", one))
    inner.set("k", "v")
    assert two.get("inner/outer/k") == b"v"
    assert inner.add("n", 3) == 3
    assert inner.compare_set("k", "v", "w") == b"w"
    inner.append("k", "x")
    inner.multi_set(["a", "b"], ["1", "2"])
    assert inner.multi_get(["a", "b", "k"]) == [b"1", b"2", b"wx"]
    assert inner.check(["a"])
    assert not two.check(["a"])
    assert inner.num_keys() == two.num_keys() == 4
    assert inner.delete_key("a")
    inner.queue_push("q", "1")
    assert two.queue_len("inner/outer/q") == 1
    assert inner.queue_pop("q") == b"1"
    inner.wait(["b"], LONG)


def test_a_store_goes_on_after_a_time_out(connect: Connect) -> None:
    one, two = connect(), connect()
    for _ in range(3):
        with pytest.raises(dist.DistStoreError):
            one.wait(["late"], SHORT)
    two.set("late", "here")
    assert one.get("late") == b"here"
    assert one.add("n", 1) == 1


def errors_of(port: int) -> dict[str, tuple[type[BaseException], str]]:
    """The exception of every call that can fail."""
    calls: dict[str, Callable[[Store], object]] = {
        "get": lambda store: store.get("missing"),
        "wait": lambda store: store.wait(["missing", "missing too"]),
        "wait with a time-out": lambda store: store.wait(["missing"], SHORT),
        "multi_get": lambda store: store.multi_get(["missing"]),
        "queue_pop": lambda store: store.queue_pop("missing"),
        "queue_pop at once": lambda store: store.queue_pop("missing", block=False),
        "barrier": lambda store: store.barrier("nobody else comes", 2, SHORT),
        "prefix": lambda store: dist.PrefixStore("p", store).get("missing"),
        "add to text": lambda store: (store.set("text", "x"), store.add("text", 1)),
        "key too long": lambda store: (store.set("k" * 10_000, ""), store.num_keys()),
        "value too long": lambda store: (store.set("k", "v" * (MAX_VALUE_BYTES + 1)), store.num_keys()),
        "multi_set": lambda store: store.multi_set(["a", "b"], ["1"]),
    }
    errors: dict[str, tuple[type[BaseException], str]] = {}
    for name, call in calls.items():
        store = dist.TCPStore(HOST, port, None, False, timeout=LONG)
        store.set_timeout(SHORT)
        with pytest.raises((RuntimeError, ValueError)) as info:
            call(store)
        errors[name] = (type(info.value), str(info.value).splitlines()[0])
    return errors


def test_every_error_is_the_one_that_torchs_server_causes() -> None:
    with_phalanx, with_torch = phalanx_server(), torch_server()
    ours, theirs = errors_of(next(with_phalanx)), errors_of(next(with_torch))
    # A connection that the server closes while the client still sends breaks here or there: the exception is
    # the same, but the text is the operating system's.
    cut_short = {"key too long", "value too long"}
    assert {name: error for name, error in ours.items() if name not in cut_short} == {
        name: error for name, error in theirs.items() if name not in cut_short
    }
    assert {ours[name][0] for name in cut_short} == {theirs[name][0] for name in cut_short}
    assert ours["get"] == (dist.DistStoreError, "wait timeout after 100ms, keys: /missing")
    for server in (with_phalanx, with_torch):
        server.close()


def test_a_host_that_is_not_of_the_job_is_refused() -> None:
    server = native.StoreServer(host=HOST, port=0, allowed=["192.0.2.1"])
    try:
        with pytest.raises(dist.DistError):
            dist.TCPStore(HOST, server.port, None, False, timeout=timedelta(seconds=2))
    finally:
        server.close()


LEAVES_WITH_ANSWERS_ON_THEIR_WAY = """
import signal, socket, struct, time
from phalanx import _native

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
server = _native.StoreServer(host="127.0.0.1", port=0)
text = lambda value: struct.pack("<Q", len(value)) + value
for _ in range(10):
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        value = bytes(1 << 20)
        client.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + b"\\1" + text(b"key") + text(value))
        # It closes its end in good order and reads nothing: what is written to it afterwards is a broken pipe.
        client.sendall((b"\\3" + text(b"key")) * 64)
    time.sleep(0.1)
server.close()
print("goes on")
"""


def test_a_server_outlives_a_client_that_leaves_where_sigpipe_ends_its_process() -> None:
    words = [sys.executable, "-c", LEAVES_WITH_ANSWERS_ON_THEIR_WAY]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


RANK = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.full((3,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
group = dist.new_group([0, 1])
dist.barrier(group=group)
objects = [None, None]
dist.all_gather_object(objects, dist.get_rank())
assert tensor.tolist() == [3.0] * 3 and objects == [0, 1], (tensor, objects)
dist.destroy_process_group()
"""


@whole("what every run does")
@pytest.mark.timeout(120)
def test_a_gloo_process_group_forms_over_our_store() -> None:
    server = native.StoreServer(host=HOST, port=0)
    environment = {
        **os.environ,
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(server.port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, stderr = rank.communicate(timeout=100)
            assert rank.returncode == 0, stderr
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        server.close()
