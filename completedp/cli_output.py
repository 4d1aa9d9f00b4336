"""How verbs print results for machines."""

from __future__ import annotations

import json
from typing import Any


def print_json(data: Any) -> None:
    """One JSON document; a number that JSON has no word for is a fault of ours."""
    print(json.dumps(data, indent=2, allow_nan=False))
