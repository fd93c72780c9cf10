"""A client of Spark Connect that executors can't connect to: they reach it through its server, which has the plugin."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import ipaddress
import logging
import os
import signal
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from phalanx import TorchDistributor, TrainingError
from support.outage import Network
from support.places import PYTHON
from support.programs import eventually, guards

pytestmark = [pytest.mark.timeout(200), pytest.mark.behaviour, pytest.mark.remote]


class TlsFront:
    """Ends with its process. It speaks HTTP/2 only, as gRPC does."""

    def __init__(self, server: str, folder: Path) -> None:
        host, port = server.rsplit(":", 1)
        self._server = host, int(port)
        self.certificate = folder / "certificate.pem"
        """What a client has to trust."""
        _make(folder / "key.pem", self.certificate)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(self.certificate, folder / "key.pem")
        self._tls.set_alpn_protocols(["h2"])
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.address = f"localhost:{listening.sockets[0].getsockname()[1]}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there = await asyncio.open_connection(*self._server)
        await asyncio.gather(_pass(reader, there[1]), _pass(there[0], writer))


async def _pass(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            to.write(data)
            await to.drain()
    except OSError:
        pass
    finally:
        to.close()


def _make(key_file: Path, certificate_file: Path) -> None:
    """A certificate for this host's loopback that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


# Nobody listens there.
ELSEWHERE = ("127.0.0.1", "127.0.0.3")


@pytest.fixture
def relayed(stage: Any, spark: Any) -> Iterator[Any]:
    """A distributor of two ranks that reach the client through the server alone."""
    spark.conf.set("spark.phalanx.connect", "relay")
    yield stage
    spark.conf.unset("spark.phalanx.connect")


def url(spark: Any) -> str:
    return str(spark._client._builder.endpoint)


def waiting_for(path: str, lines: int = 1) -> str:
    """Prints lines, waits for a file, and says which attempt it is."""
    import os

    for line in range(lines):
        print(f"line {line}", flush=True)
    while not os.path.exists(path):
        time.sleep(0.05)
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def bytes_of(size: int) -> bytes:
    return bytes(i * i % 251 for i in range(251)) * (size // 251)


def killed_once(path: str) -> str:
    import os
    import signal

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if os.environ["RANK"] == "1" and attempt == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt


def fail_on_rank_one() -> None:
    import os

    if os.environ["RANK"] == "1":
        raise KeyError("no such column")
    time.sleep(600)


def test_executors_that_cant_connect_to_the_client_reach_it_through_its_server(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from phalanx import distributor as module
    from phalanx.connect import relay

    monkeypatch.setattr(module, "hub_endpoint", lambda *_: ELSEWHERE)
    monkeypatch.setattr(relay, "_unreachable", set())
    caplog.set_level(logging.INFO, "phalanx")
    for time_of_session in ("first", "second"):
        go = tmp_path / time_of_session
        run = stage.start(waiting_for, str(go))
        for rank in (0, 1):
            eventually("lines come before the end", 60, lambda run=run, rank=rank: run.logs(rank))
        assert not run.done
        assert {"all joined", "user code"} <= {phase.name for phase in run.phases}
        go.touch()
        assert run.results(60) == ["0", "0"]
    said = [text for text in caplog.messages if "through the Spark Connect server" in text]
    assert len(said) == 1, "it is said once"
    assert relay._unreachable, "the second run doesn't try the direct way first"


def test_a_failing_ranks_cause_comes_and_a_restart_in_place_goes_through_the_server(
    relayed: Any, two_ranks: Any
) -> None:
    with pytest.raises(TrainingError) as failure:
        relayed.run(fail_on_rank_one)
    assert (failure.value.rank, failure.value.kind) == (1, "exception")
    assert "no such column" in str(failure.value)
    again = two_ranks("connect", max_restarts=1)
    assert again.start(killed_once, "").results(60) == ["1", "1"]


def test_cancel_and_interrupts_end_the_ranks_behind_the_server(
    relayed: Any, spark: Any, tmp_path: Path
) -> None:
    def in_training() -> Any:
        run = relayed.start(waiting_for, str(tmp_path / "never"))
        eventually("the ranks train", 60, lambda: run.logs(0) and run.logs(1))
        return run

    run = in_training()
    run.cancel()
    with pytest.raises(TrainingError, match="cancelled by the caller"):
        run.result(30)
    for interrupt in (lambda: spark.interruptTag("the-users"), spark.interruptAll):
        spark.addTag("the-users")
        run = in_training()
        spark.removeTag("the-users")
        interrupt()
        with pytest.raises(TrainingError) as failure:
            run.result(30)
        assert failure.value.kind == "cancelled"
        eventually("no rank is left", 30, lambda: not guards())


def test_a_large_result_comes_through_the_server_intact(relayed: Any) -> None:
    size = 100 << 20
    result = relayed.run(bytes_of, size)
    assert hashlib.sha256(result).digest() == hashlib.sha256(bytes_of(size)).digest()


@contextlib.contextmanager
def another_client(address: str, work: Path, train: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A client in a process of its own, whose tasks come through the server; `train` is its function, and what it
    prints on stdout is what its rank prints, and then the result."""
    program = f"""
from pyspark.sql import SparkSession
from phalanx import TorchDistributor
spark = SparkSession.builder.remote("sc://{address}").getOrCreate()
spark.conf.set("spark.phalanx.connect", "relay")
{textwrap.dedent(train)}
print("RESULT", TorchDistributor(num_processes=1, local_mode=False, use_gpu=False).run(train), flush=True)
"""
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(PYTHON)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(work), **env}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as client:
        try:
            yield client
        finally:
            client.kill()


def test_a_killed_clients_ranks_end_and_another_clients_go_on(
    relayed: Any, spark: Any, tmp_path: Path
) -> None:
    train = """
    spark.conf.set("spark.phalanx.nodeTimeout", "4s")
    def train():
        import time
        print("in training", flush=True)
        time.sleep(600)
    """
    with another_client(url(spark), tmp_path, train) as other:
        assert other.stdout is not None
        assert "in training" in other.stdout.readline()
        assert len(guards()) == 1
        one = TorchDistributor(num_processes=1, local_mode=False, use_gpu=False)
        go = tmp_path / "go"
        run = one.start(waiting_for, str(go))
        eventually("two clients' ranks run at the same time", 60, lambda: run.logs(0))
        other.send_signal(signal.SIGKILL)
        eventually("the killed client's rank is gone", 60, lambda: len(guards()) == 1)
        go.touch()
        assert run.result(60) == "0"


def test_all_that_goes_through_a_server_that_has_tls_goes_over_tls(
    stage: Any, spark: Any, tmp_path: Path
) -> None:
    front = TlsFront(url(spark), tmp_path)
    train = """
    def train():
        print("in training", flush=True)
        return 5
    """
    roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(front.certificate)}
    with another_client(f"{front.address}/;use_ssl=true", tmp_path, train, **roots) as client:
        assert client.stdout is not None
        said = client.stdout.read().splitlines()
        assert client.wait(60) == 0
    assert said == ["[rank 0] in training", "RESULT 5"]
    assert front.connections >= 3, "the session's, and the relay's two"


@pytest.mark.parametrize("outage", ["reset", "pause"])
def test_a_client_that_is_cut_off_for_half_a_minute_comes_back_and_has_lost_nothing(
    stage: Any, spark: Any, tmp_path: Path, outage: str
) -> None:
    network = Network(url(spark))
    port = network.address.rpartition(":")[2]
    go = tmp_path / "go"
    lines = 1000
    train = f"""
    def train():
        import os, time
        print("in training", flush=True)
        while not os.path.exists({str(go)!r}):
            time.sleep(0.05)
        for line in range({lines}):
            print(line, flush=True)
            time.sleep(0.002)
        return {lines}
    """
    with another_client(f"localhost:{port}", tmp_path, train) as client:
        assert client.stdout is not None
        assert "in training" in client.stdout.readline()
        network.fails(outage)
        go.touch()
        time.sleep(30)
        network.works()
        said = client.stdout.read().splitlines()
        assert client.wait(60) == 0
    assert said == [*(f"[rank 0] {line}" for line in range(lines)), f"RESULT {lines}"], "WAY-1"
