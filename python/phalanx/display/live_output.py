"""The ranks' output, shown where the caller looks."""

from __future__ import annotations

import logging
import sys

from .label import Label

logger = logging.getLogger("phalanx")


class LiveOutput:
    """Writes output to the stdout that the caller has at the time; gives up, once and loudly, if it can't."""

    def __init__(self, label: Label) -> None:
        self._label = label
        self._broken = False

    def __call__(self, text: str) -> None:
        if self._broken:
            return
        text = self._label.on(text)
        try:
            out = sys.stdout
            try:
                out.write(text)
            except UnicodeEncodeError:
                encoding = out.encoding or "ascii"
                out.write(text.encode(encoding, "backslashreplace").decode(encoding))
            out.flush()
        except Exception as error:
            self._broken = True
            logger.warning("The ranks' output can't be shown any more (%s); the run goes on.", error)
