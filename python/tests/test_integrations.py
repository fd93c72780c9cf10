"""What the callbacks of libraries report, and what they import; the libraries themselves are in tests/integrations."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from phalanx.integrations.lightning import PhalanxCallback
from phalanx.integrations.step_report import StepReport
from phalanx.rank import reporting


class Loss:
    """A number on a device; who asks for it waits."""

    def __init__(self) -> None:
        self.reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return 0.5


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []

    def tell(earlier: dict[str, Any], *, of: int | None, **values: Any) -> None:
        told.append({"earlier": earlier, **values})

    monkeypatch.setattr(reporting, "in_rank", lambda: True)
    monkeypatch.setattr(reporting, "report_beside", tell)
    return told


def test_a_loss_is_read_when_a_report_goes_out_and_not_at_each_step(reported: list[dict[str, Any]]) -> None:
    report, loss = StepReport(), Loss()
    for step in range(100):
        report(step, loss=loss, epoch=2)
    assert [told["step"] for told in reported] == list(range(100))
    assert reported[0] == {"earlier": {}, "step": 0, "loss": 0.5, "epoch": 2}
    assert reported[99]["earlier"] == {"loss": 0.5}, "LIBRARY-8: displays have it"
    assert 1 <= loss.reads < 50, "LIBRARY-8"
    assert sum("loss" in told for told in reported) == loss.reads, "LIBRARY-8: no loss of another step"


def test_a_loss_that_is_on_no_device_is_read_at_each_step(reported: list[dict[str, Any]]) -> None:
    report = StepReport()
    for step in range(10):
        near = Loss()
        near.device = SimpleNamespace(type="cpu")  # type: ignore[attr-defined]
        report(step, loss=near if step % 2 else step / 2)
    assert [told["loss"] for told in reported] == [0.0, 0.5, 1.0, 0.5, 2.0, 0.5, 3.0, 0.5, 4.0, 0.5]


def test_what_a_step_returns_need_not_be_a_number(reported: list[dict[str, Any]]) -> None:
    StepReport()(1, loss={"mine": 1})
    StepReport()(2)
    assert reported == [{"earlier": {}, "step": 1}, {"earlier": {}, "step": 2}]


def test_outside_of_a_rank_nothing_is_read_or_told() -> None:
    loss = Loss()
    StepReport()(1, loss=loss)
    assert loss.reads == 0


def test_lightnings_callback_is_one_of_whichever_package_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = type("Callback", (), {}), type("Callback", (), {})
    monkeypatch.delitem(sys.modules, "lightning.pytorch", raising=False)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", SimpleNamespace(Callback=one))
    callback = PhalanxCallback()
    assert isinstance(callback, one), "LIBRARY-4"
    assert isinstance(callback, PhalanxCallback)
    assert type(callback).__qualname__ == "PhalanxCallback", "its key in a checkpoint"
    monkeypatch.setitem(sys.modules, "lightning.pytorch", SimpleNamespace(Callback=other))
    both = pickle.loads(pickle.dumps(callback))
    assert isinstance(both, one)
    assert isinstance(both, other)
    trainer = SimpleNamespace(global_step=3, current_epoch=0)
    both.on_train_batch_end(trainer, None, {"loss": 1.0}, None, 0)


def test_a_callback_of_a_users_own_class_travels_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, reported: list[dict[str, Any]]
) -> None:
    package = type("Callback", (), {})
    monkeypatch.delitem(sys.modules, "lightning.pytorch", raising=False)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", SimpleNamespace(Callback=package))

    class Mine(PhalanxCallback):
        def __init__(self, every: int) -> None:
            super().__init__()
            self.every = every

        def on_fit_end(self, trainer: Any, pl_module: Any) -> str:
            return f"every {self.every}"

    sent = pickle.loads(cloudpickle.dumps(Mine(7)))
    assert type(sent).__qualname__ == Mine.__qualname__
    assert isinstance(sent, package), "LIBRARY-4"
    assert (sent.every, sent.on_fit_end(None, None)) == (7, "every 7")
    sent.on_train_batch_end(SimpleNamespace(global_step=3, current_epoch=0), None, None, None, 0)
    assert [told["step"] for told in reported] == [3]


def test_naming_lightnings_callback_imports_no_library() -> None:
    program = (
        "import sys, phalanx.integrations.lightning; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'lightning', 'pytorch_lightning')))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0, "LIBRARY-4"
