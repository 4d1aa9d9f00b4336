"""Warnings at the user's own line, so that Python says each once for a call of theirs."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
"""With its last sign: a user's folder may begin with our name."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn where the user called us: where in the package it was found is nothing to them."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
