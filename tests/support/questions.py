"""What is asked of the driver's JVM: each question is a round trip of py4j."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection
from py4j.protocol import MEMORY_COMMAND_NAME


def questions_to_the_jvm(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process asks from now on, one text each.

    Left out are what the JVM is told of objects that nobody holds any more, what Spark's UI is told, and the looks at a
    stage: how many there are depends on how long something takes.
    """
    asked: list[str] = []
    send = ClientServerConnection.send_command

    def noted(connection: Any, command: str, *rest: Any) -> Any:
        is_of_run = threading.current_thread().name not in ("phalanx-ui", "phalanx-stage-watch")
        if is_of_run and not command.startswith(MEMORY_COMMAND_NAME):
            asked.append(command)
        return send(connection, command, *rest)

    monkeypatch.setattr(ClientServerConnection, "send_command", noted)
    return asked
