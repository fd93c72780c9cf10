"""Phalanx's commands to a Spark Connect server, over a connection of their own.

All that touches pyspark's client of Spark Connect is here.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RELAY = "type.phalanx.dev/relay"
"""Of a command to a relay, and of what answers it."""
STAGE = "type.phalanx.dev/stage"
"""Of a question for a stage, by its job's tag, its seats if it is a gang of tasks, and its profile; and of answers."""


class Refused(Exception):
    """The server says that it can't; why."""


class Away(Exception):
    """The server can't be reached now; it may be later."""


class ConnectServer:
    """A connection to the server of a session. It is anew for each object, and shares nothing with the session's."""

    def __init__(self, spark: SparkSession) -> None:
        import pyspark.sql.connect.proto.base_pb2_grpc as grpc_lib

        self._client: Any = spark._client
        builder = copy.copy(self._client._builder)
        # Else gRPC tries anew when it likes to, and up to two minutes after the last time.
        with contextlib.suppress(AttributeError):
            builder._channel_options = [*builder._channel_options, ("grpc.use_local_subchannel_pool", 1)]
        self._channel = builder.toChannel()
        self._stub = grpc_lib.SparkConnectServiceStub(self._channel)
        self._call: Any = None
        self.followed = ""
        """Which command `follow` follows."""

    def ask(self, value: bytes, timeout: float, kind: str = RELAY) -> bytes:
        """The answer to a short command of this kind; b"" where it has none.

        Raises `Refused` and `Away`.
        """
        answers = list(self._answers(self._request(value, kind, tags=()), timeout, kind))
        return answers[0] if answers else b""

    def follow(self, value: bytes, tags: tuple[str, ...]) -> Iterator[bytes]:
        """The answers to a command, as they come. The command goes on when the connection breaks.

        They end with the command, or where the server wants to be asked again. The server keeps what it has answered
        until `release`. Raises `Refused` and `Away`.
        """
        import pyspark.sql.connect.proto as pb2

        request = self._request(value, RELAY, tags)
        options: Any = pb2.ReattachOptions(reattachable=True)
        request.request_options.append(pb2.ExecutePlanRequest.RequestOption(reattach_options=options))
        self.followed = request.operation_id
        yield from self._answers(request, None, RELAY)

    def cancel(self) -> None:
        """Ends `follow` from another thread: it raises `Away`."""
        if (call := self._call) is not None:
            call.cancel()

    def close(self) -> None:
        """Ends the connection; what is under way raises `Away`."""
        self.cancel()
        with contextlib.suppress(Exception):
            self._channel.close()

    def _request(self, value: bytes, kind: str, tags: tuple[str, ...]) -> Any:
        request = self._client._execute_plan_request_with_metadata()
        request.operation_id = str(uuid.uuid4())
        del request.tags[:]
        request.tags.extend(tags)
        extension = request.plan.command.extension
        extension.type_url, extension.value = kind, value
        return request

    def _answers(self, request: Any, timeout: float | None, kind: str) -> Iterator[bytes]:
        grpc: Any = importlib.import_module("grpc")
        passing = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED
        try:
            self._call = call = self._stub.ExecutePlan(
                request, metadata=self._client._builder.metadata(), timeout=timeout
            )
            for response in call:
                if response.HasField("extension") and response.extension.type_url == kind:
                    yield response.extension.value
        except grpc.RpcError as error:
            failure: Any = error
            said = failure.details() or str(failure.code())
            raise (Away if failure.code() in passing else Refused)(said.partition("\n")[0]) from None
        except ValueError as error:  # the channel is closed
            raise Away(str(error)) from None

    def release(self, operation: str) -> None:
        """Lets the server forget a command that was `followed`, and ends it if it still runs."""
        import pyspark.sql.connect.proto as pb2

        grpc: Any = importlib.import_module("grpc")
        like = self._client._execute_plan_request_with_metadata()
        request: Any = pb2.ReleaseExecuteRequest(
            session_id=like.session_id,
            user_context=like.user_context,
            operation_id=operation,
            release_all=pb2.ReleaseExecuteRequest.ReleaseAll(),
        )
        with contextlib.suppress(grpc.RpcError, ValueError):
            self._stub.ReleaseExecute(request, metadata=self._client._builder.metadata(), timeout=1)
