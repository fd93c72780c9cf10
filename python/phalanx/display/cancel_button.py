"""A button of a notebook that cancels a run, where ipywidgets is installed.

DISPLAY-1 (only-in-notebooks): ipywidgets is imported when a notebook displays a run that goes on, and never otherwise.
A button that can't be made is none.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("phalanx")

REASON = "cancelled by the button in the notebook"


class CancelButton:
    """A button below which the run is drawn; `close` takes it away."""

    def __init__(self, widget: Any) -> None:
        self._widget = widget

    def close(self) -> None:
        """Takes it away: there is nothing to cancel any more."""
        self._widget.close()


def cancel_button(cancel: Callable[[str], None]) -> CancelButton | None:
    """Displays the button in the cell; None where ipywidgets can't be used."""
    try:
        ipywidgets: Any = importlib.import_module("ipywidgets")
        display: Any = importlib.import_module("IPython.display").display
    except Exception:  # not installed, or another one than IPython's
        return None

    def pressed(button: Any) -> None:
        button.disabled, button.description = True, "Cancelling"
        cancel(REASON)

    try:
        widget = ipywidgets.Button(description="Cancel the run", button_style="danger")
        widget.on_click(pressed)
        display(widget)
    except Exception as error:
        logger.debug("A run has no button in its cell: %s", error)
        return None
    return CancelButton(widget)
