"""What several test files share: the one-line error, and small reference models with recipes."""

from collections.abc import Callable
from typing import Any

import pytest

from completedp.common.errors import CompletedpError

BASE = {"width": 64, "depth": 2, "batch": 1024, "tokens": 64 * 1024}


def error_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The message of the CompletedpError that the call raises, which must be one line."""
    with pytest.raises(CompletedpError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message
