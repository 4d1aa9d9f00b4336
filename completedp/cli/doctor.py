"""The verb `doctor`: what this machine has."""

from __future__ import annotations

from dataclasses import dataclass

from completedp.cli.shared import Verb, register, show


@register("doctor")
@dataclass(frozen=True, kw_only=True)
class DoctorVerb(Verb):
    """What this machine has: versions, devices, extras, and whether they work."""

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Look and say."""
        from completedp.bench.doctor import examine

        found = examine()
        lines = (f"{name:<24} {value}" for name, value in found.items())
        return show(found, "\n".join(lines), self.json)
