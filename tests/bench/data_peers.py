"""The peers of tests/bench/data.py and elastic.py that other projects make, each in an environment of its own.

    python tests/bench/data_peers.py [PEER...]      makes the environments of all, or of those named

An environment, below target/bench-peers/, has the packages that are pinned here, and what they need. torch, and what
else is in the project's own environment, comes from there, so that nothing large is on the disk twice. A peer's ranks
run a program of tests/bench/peers/ in it, which says what the peer is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import ROOT, note
from passes import RANKS

PLACE = ROOT / "target" / "bench-peers"
UV = ROOT / ".venv" / "bin" / "uv"
TIMEOUT_S = 180
# Never installed: the project's own environment has it, or (the clouds' clients) no peer needs it here.
LEFT_OUT = (
    *("torch", "transformers", "pyspark", "matplotlib"),
    *("boto3", "oci", "paramiko", "databricks-sdk", "google-cloud-storage"),
    *("azure-identity", "azure-storage-blob", "azure-storage-file-datalake"),
)


class Refused(Exception):
    """What a peer says of data that it doesn't take."""


@dataclass(frozen=True)
class Peer:
    name: str
    packages: tuple[str, ...]
    shared: tuple[str, ...] = ("numpy", "pandas", "pyarrow")
    """Packages of the project's own environment that it gets along with."""
    converts: bool = False
    """Whether it reads a form of its own, into which the Parquet files are converted before."""
    processes: int = RANKS
    """How many programs are started; Ray starts its ranks itself."""

    @property
    def key(self) -> str:
        return self.name.lower().replace(" ", "_")

    @property
    def python(self) -> Path:
        return PLACE / self.key / "bin" / "python"

    @property
    def is_there(self) -> bool:
        mark = PLACE / self.key / ".packages"
        return mark.is_file() and mark.read_text() == " ".join(self.packages)

    def set_up(self) -> None:
        """Makes the environment, where it isn't there with these packages."""
        if self.is_there:
            return
        note(f"peers: {' '.join(self.packages)}")
        folder = PLACE / self.key
        base = ROOT / ".venv" / "bin" / "python"
        subprocess.run([UV, "venv", "--quiet", "--clear", "--python", base, folder], check=True)
        [packages] = folder.glob("lib/python*/site-packages")
        [project] = (ROOT / ".venv").glob("lib/python*/site-packages")
        # Behind the environment's own packages, which come first.
        (packages / "project.pth").write_text(f"{project}\n")
        left_out = folder / "left-out.txt"
        left_out.write_text("\n".join([*LEFT_OUT, *self.shared]))
        install = [UV, "pip", "install", "--quiet", "--python", self.python, "--excludes", left_out]
        subprocess.run([*install, *self.packages], check=True)
        (folder / ".packages").write_text(" ".join(self.packages))

    def measure(self, folder: str, seconds: float) -> dict[str, float]:
        """Rows a second of later epochs, and the seconds of a conversion before the first.

        Raises `Refused` with what the peer says where it doesn't take the data.
        """
        found: dict[str, float] = {}
        with tempfile.TemporaryDirectory(dir=PLACE) as kept:
            if self.converts:
                found |= self._answers(1, "convert", folder, kept)[0]
            rates = self._answers(self.processes, "read", folder, kept, str(seconds))
        return found | {"later": sum(rate["later"] for rate in rates)}

    def _answers(self, processes: int, *arguments: str) -> list[dict[str, float]]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        env = os.environ | {
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONWARNINGS": "ignore",
        }
        env.pop("PYTHONPATH", None)
        program = Path(__file__).resolve().parent / "peers" / f"with_{self.key}.py"
        log = PLACE / f"{self.key}.log"
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(log.open("w"))
            started = [
                subprocess.Popen(
                    [self.python, program, *arguments],
                    env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
                for rank in range(processes)
            ]
            for one in started:
                stack.callback(end, one)
            try:
                texts = [one.communicate(timeout=TIMEOUT_S)[0] for one in started]
            except subprocess.TimeoutExpired:
                raise Refused(f"no answer within {TIMEOUT_S} s") from None
        if not all(texts):
            raise RuntimeError(f"a program of {self.name} printed nothing; see {log}")
        answers: list[dict[str, float]] = [json.loads(text.splitlines()[-1]) for text in texts]
        for answer in answers:
            if "refused" in answer:
                raise Refused(answer["refused"])
        return answers


def end(process: subprocess.Popen[str]) -> None:
    """Ends a program and what it started, which has its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


PEERS = (
    # It needs an Arrow that still has the old readers of Parquet, and that needs an old numpy.
    Peer("Petastorm", ("petastorm==0.13.1", "pyarrow==14.0.2", "numpy==1.26.4", "pandas==2.3.3"), shared=()),
    Peer("Mosaic", ("mosaicml-streaming==0.13.0", "torchvision==0.28.0"), converts=True),
    Peer("Ray", ("ray[data,train]==2.60.0",), processes=1),
    Peer("Hugging Face", ("datasets==5.2.0",), converts=True),
)


def set_up(names: list[str] | None = None) -> None:
    """Makes the environments of these peers, or of all; what can't be installed is told, and left out."""
    PLACE.mkdir(parents=True, exist_ok=True)
    for peer in PEERS:
        if not names or peer.name in names:
            try:
                peer.set_up()
            except subprocess.CalledProcessError as error:
                note(f"peers: {peer.name} can't be installed: {error}")


if __name__ == "__main__":
    set_up(sys.argv[1:])
