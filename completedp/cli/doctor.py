"""The verb `doctor`: what this machine has."""

from __future__ import annotations

from dataclasses import dataclass

from completedp.cli.shared import Verb, print_json, register


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
        if self.json:
            print_json(found)
            return 0
        for name, value in found.items():
            print(f"{name:<24} {value}")
        return 0
