"""Named numbers: attributes that do not change, whose names are data and not fields of a class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class NamedNumbers:
    """Numbers by name.

    >>> found = NamedNumbers(lr=0.5, eps=2.0)
    >>> found.lr, found
    (0.5, NamedNumbers(lr=0.5, eps=2.0))
    """

    def __init__(self, **numbers: float) -> None:
        self.__dict__.update(numbers)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float: ...

    def to_dict(self) -> dict[str, float]:
        """Plain numbers, for JSON."""
        return dict(vars(self))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} do not change: make others")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(sorted(vars(self).items())))

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({numbers})"
