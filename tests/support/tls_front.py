"""TLS in front of a server, as a load balancer has it: what comes through goes on to the server as it is."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


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
