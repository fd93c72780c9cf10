"""What a client of Spark Connect has to do itself, because Spark's driver is elsewhere.

WAY-11 (no-py4j): nothing here, and nothing that a client uses, needs py4j or a SparkContext.
WAY-12 (client-address): the hub is the client's, so tasks are told the client's address, never the driver's.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import tempfile
from typing import TYPE_CHECKING, Any

from .. import _native
from ..plumbing.own_folder import own_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Beyond this a payload goes to the server as a file: a plan is one message, of 128 MiB at most, and the server's heap
# holds several copies of it.
DIRECT_BYTES = 8 << 20


def is_remote(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect: no py4j, no SparkContext, the driver elsewhere."""
    return not hasattr(spark, "_jsparkSession")


def gang_settings(spark: SparkSession | None) -> dict[str, str]:
    """Settings of a run of such a session, whose gang of tasks is one stage: no seat can be submitted once more, so no
    host is left alone."""
    return {"spark.phalanx.host.cooldown": "0"} if spark is not None and is_remote(spark) else {}


def endpoint(spark: SparkSession) -> tuple[str, str]:
    """Where the client's hub binds and what tasks are told: (bind, advertise).

    That is the address from which this host reaches the server. Where the server is on this host, it is what the
    driver would use; at the end of a tunnel nothing is known, and it is the host's name.
    """
    own = own_address_towards(_server(spark))
    if own is not None and not ipaddress.ip_address(own).is_loopback:
        return own, own
    driver = spark.conf.get("spark.driver.host", None)
    if driver and _native.is_own_host(driver):
        return spark.conf.get("spark.driver.bindAddress", None) or "", driver
    return "", socket.gethostname()


def own_address_towards(host: str) -> str | None:
    """The address of this host that packets to `host` carry; None where that isn't known. Sends nothing."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None


def shipped(spark: SparkSession, payload: bytes) -> bytes | str:
    """A payload for the stage's closure: itself, or the name under which executors have it as a file of Spark's.

    Such a file stays with the session until that ends: Spark can't remove it.
    """
    if len(payload) <= DIRECT_BYTES:
        return payload
    with tempfile.NamedTemporaryFile(prefix="phalanx-payload-", dir=own_folder()) as file:
        file.write(payload)
        file.flush()
        add: Any = spark.addArtifacts
        add(file.name, file=True)
        return os.path.basename(file.name)


def _server(spark: SparkSession) -> str:
    try:
        return str(spark._client.host)
    except Exception:  # a channel of the user's own making has no host
        return "localhost"
