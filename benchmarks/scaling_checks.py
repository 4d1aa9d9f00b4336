"""Both checks over large ranges, from one set of measurements: for docs/results/checks.md.

    python benchmarks/scaling_checks.py            # x8 and x16, about ten minutes on one core
    python benchmarks/scaling_checks.py --full     # x32, about four minutes on an H200
    python benchmarks/scaling_checks.py --figure   # docs/coordcheck.svg

What was measured is in data/scaling-checks.json.xz (`--full`) and data/scaling-checks-cpu.json.xz,
by size and seed; the tables are made of it by `make docs`. It goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from measured import FOLDER, packed, read, unpacked, write

from completedp.evidence.check import make_check
from completedp.evidence.config import CHECK_SHAPE, CheckSettings
from completedp.evidence.coordcheck import coordinate_rows
from completedp.evidence.gradcheck import gradient_rows
from completedp.evidence.plots import check_svg
from completedp.evidence.result import CheckResult
from completedp.evidence.rows import Row
from completedp.evidence.run import COORDCHECK, GRADCHECK
from completedp.evidence.scaling import sweep
from completedp.training.devices import choose_device

DATA = FOLDER / "scaling-checks.json.xz"
CPU_DATA = FOLDER / "scaling-checks-cpu.json.xz"
PICTURE = Path(__file__).parent.parent / "docs" / "coordcheck.svg"
ONE, HALF, NO_NORMS = "alpha 1", "alpha 1/2", "alpha 1/2, no QK norms"
AS_IT_IS, NEAR_LIMIT = "recipe `default`", "recipe `default`, near its limit"
RECIPES = {AS_IT_IS: "default", NEAR_LIMIT: "default"}
RULES = ("completedp", "completep", "mup", "sp")
WITHOUT = replace(CHECK_SHAPE, qk_norm=False)
CPU = {
    ONE: CheckSettings(
        widths=(64, 128, 256, 512), depths=(2, 4, 8, 16, 32), batch=512, parameterisations=RULES
    ),
    HALF: CheckSettings(widths=(64, 128, 256, 512), depths=(4, 8, 16, 32), batch=512, alpha=0.5),
    NO_NORMS: CheckSettings(
        widths=(64, 128, 256), depths=(4, 8, 16), batch=512, alpha=0.5, shape=WITHOUT
    ),
    AS_IT_IS: CheckSettings(widths=(64, 128, 256), depths=(2, 4, 8), batch=512),
    NEAR_LIMIT: CheckSettings(widths=(64, 128, 256), depths=(2, 4, 8), batch=512, near_limit=True),
}
SAME = ("widths", "depths", "batch", "steps", "seeds", "lr", "recipe")
"""What has to be the same for measurements to go on; with others they begin anew."""
LARGE = (64, 128, 256, 512, 1024, 2048)
FULL = {
    ONE: CheckSettings(widths=LARGE, depths=(2, 4, 8, 16, 32, 64), parameterisations=RULES),
    HALF: CheckSettings(widths=LARGE, depths=(4, 8, 16, 32, 64), alpha=0.5),
    NO_NORMS: CheckSettings(widths=LARGE, depths=(4, 8, 16, 32, 64), alpha=0.5, shape=WITHOUT),
    AS_IT_IS: CheckSettings(widths=(256, 512, 1024, 2048), depths=(4, 8, 16, 32)),
    NEAR_LIMIT: CheckSettings(
        widths=(256, 512, 1024, 2048), depths=(4, 8, 16, 32), near_limit=True
    ),
}


def run(path: Path, every: dict[str, CheckSettings]) -> None:
    """Measure what the file does not have with these settings."""
    data = read(path)
    for name, settings in every.items():
        check = make_check(settings=settings, recipe=RECIPES.get(name))
        config = check.to_dict() | {"device": str(choose_device(settings.device))}
        if any(data.get(name, {}).get("config", {}).get(key) != config[key] for key in SAME):
            data[name] = {"config": config, "measured": {}}
        for rules in check.rules:
            for axis in check.axes:
                key = f"{rules.parameterisation} {axis}"
                if key not in data[name]["measured"]:
                    print(name, key, flush=True)
                    data[name]["measured"][key] = packed(sweep(check, rules, axis))
                    write(path, data)


def rows_of(data: dict[str, Any], name: str, check: str) -> list[Row]:
    """What a check says of what was measured."""
    judge = {COORDCHECK: coordinate_rows, GRADCHECK: gradient_rows}[check]
    measured = [unpacked(each) for each in data[name]["measured"].values()]
    return [row for each in measured for row in judge(each)]


def table(data: dict[str, Any]) -> str:
    """Markdown: slopes of every tensor, with the rules and without; what fails in bold."""
    coordinates, gradients = (rows_of(data, ONE, name) for name in (COORDCHECK, GRADCHECK))
    columns = [
        ("own, width", coordinates, "completedp", "width", "own"),
        ("own, depth", coordinates, "completedp", "depth", "own"),
        ("`sp` own, width", coordinates, "sp", "width", "own"),
        ("`sp` own, depth", coordinates, "sp", "depth", "own"),
        ("gradient, width (eps)", gradients, "completedp", "width", "gradient"),
        ("gradient, depth (eps)", gradients, "completedp", "depth", "gradient"),
    ]
    tensors = [
        row.what
        for row in coordinates
        if (row.parameterisation, row.axis, row.quantity) == ("completedp", "width", "own")
    ]
    lines = [f"| tensor | {' | '.join(name for name, *_ in columns)} |"]
    lines.append("| --- " * (1 + len(columns)) + "|")
    for tensor in tensors:
        cells = [_cell(rows, *key, tensor) for _, rows, *key in columns]
        lines.append(f"| {tensor} | {' | '.join(cells)} |")
    for tensor, said in (
        ("blocks", "blocks (change)"),
        ("stream", "stream (change)"),
        ("unembedding", "logits (change)"),
    ):
        cells = [_cell(rows, rules, axis, "change", tensor) for _, rows, rules, axis, _ in columns]
        lines.append(f"| {said} | {' | '.join(cells[:4])} | | |")
    return "\n".join(lines)


def verdicts(data: dict[str, Any], names: Iterable[str] = tuple(CPU)) -> str:
    """Markdown: how many rows fail, by rules, check and axis, and the farthest from theory."""
    lines = ["| rules | check | axis | rows | failed | known | farthest from theory, known aside |"]
    lines.append("| --- " * 7 + "|")
    for name in names:
        for check in (COORDCHECK, GRADCHECK):
            rows = rows_of(data, name, check)
            for key in dict.fromkeys((row.parameterisation, row.axis) for row in rows):
                mine = [row for row in rows if (row.parameterisation, row.axis) == key]
                said = key[0] if name == ONE else f"{key[0]}, {name}"
                lines.append(f"| {said} | {check} | {key[1]} | {_counted(mine)} |")
    return "\n".join(lines)


def _counted(rows: list[Row]) -> str:
    judged = [row for row in rows if row.verdict != "known"]
    far = max(judged, key=lambda row: abs(row.slope - row.expected))
    failed, known = (sum(row.verdict == name for row in rows) for name in ("fail", "known"))
    return (
        f"{len(rows)} | {failed} | {known} | "
        f"{far.quantity} of {far.what}: {far.slope:+.2f} for {far.expected:+.2f}"
    )


def _cell(rows: list[Row], rules: str, axis: str, quantity: str, tensor: str) -> str:
    found = [
        row
        for row in rows
        if (row.parameterisation, row.axis, row.quantity, row.what)
        == (rules, axis, quantity, tensor)
    ]
    if not found:
        return ""
    row = found[0]
    text = f"{row.slope:+.2f}".replace("+0.00", "0.00").replace("-0.00", "0.00")
    text += "*" if row.verdict == "known" else ""
    text += f" ({row.expected:+.0f})".replace("+0", "0") if quantity == "gradient" else ""
    return f"**{text}**" if row.verdict == "fail" else text


def figure(data: dict[str, Any]) -> str:
    """docs/coordcheck.svg: own contributions, with the rules and without."""
    rows = rows_of(data, ONE, COORDCHECK)
    shown = [row for row in rows if row.parameterisation in ("completedp", "sp")]
    checked = make_check(settings=FULL[ONE])
    return check_svg(CheckResult(check=COORDCHECK, checked=checked, rows=shown), ["own"])


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--figure", action="store_true")
    args = parser.parse_args()
    if args.figure:
        PICTURE.write_text(figure(read(DATA)))
    elif args.full:
        run(DATA, FULL)
    else:
        run(CPU_DATA, CPU)


if __name__ == "__main__":
    main()
