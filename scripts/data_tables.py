"""Write the tables that are made of measurements into their pages, between markers.

python scripts/data_tables.py

The measurements are in benchmarks/data, and what makes tables of them is beside the experiments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import batch_tables  # noqa: E402
import batch_with_tokens  # noqa: E402
import begins  # noqa: E402
import beta_rules  # noqa: E402
import cpu_sweeps  # noqa: E402
import decay_horizon  # noqa: E402
import headline_tables as headline  # noqa: E402
import ladders  # noqa: E402
import measured  # noqa: E402
import model_checks  # noqa: E402
import muon  # noqa: E402
import planted_errors  # noqa: E402
import qk_norm_gradients  # noqa: E402
import recipe_again  # noqa: E402
import recipes_compared  # noqa: E402
import regret  # noqa: E402
import scaling_checks  # noqa: E402
import search_tables  # noqa: E402
import target_again  # noqa: E402
import timings  # noqa: E402
import token_rule  # noqa: E402
import transfer  # noqa: E402
import two_scales  # noqa: E402
import two_trees  # noqa: E402


def _slots(name: str) -> str:
    return timings.slots_table(timings.found("cuda", name))


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "headline summary": ("results/headline.md", lambda: headline.summary(headline.found())),
    "headline losses": ("results/headline.md", lambda: headline.losses(headline.found())),
    "headline speed-ups": ("results/headline.md", lambda: headline.speedups(headline.found())),
    "headline rates": ("results/headline.md", lambda: headline.rates(headline.found())),
    "losses again": ("results/headline.md", lambda: headline.losses(target_again.found())),
    "second losses": ("results/headline.md", lambda: headline.losses(target_again.second())),
    "speed-ups again": ("results/headline.md", target_again.table),
    "wider losses": ("results/headline.md", lambda: headline.losses(headline.wider_base())),
    "wider speed-ups": ("results/headline.md", lambda: headline.speedups(headline.wider_base())),
    "headline ladders": ("results/search.md", ladders.headline_table),
    "real searches": ("results/search.md", search_tables.real_table),
    "landscapes": ("results/search.md", search_tables.landscapes_table),
    "samplers": ("results/search.md", search_tables.samplers_table),
    "surrogate": ("results/search.md", search_tables.surrogate_table),
    "forecast": ("results/search.md", search_tables.forecast_table),
    "carried": ("results/search.md", search_tables.carried_table),
    "steadiness": ("results/search.md", search_tables.steady_table),
    "stopped": ("results/search.md", search_tables.stopped_table),
    "memories": ("results/betas.md", batch_tables.memories_table),
    "larger batches": ("choosing-a-base.md", batch_tables.cost_table),
    "ways": ("results/search.md", ladders.ways_table),
    "candidates": ("results/search.md", ladders.candidates_table),
    "drift": ("transfer.md", lambda: transfer.drift_table(transfer.lines())),
    "batch rules": ("transfer.md", batch_tables.rules_table),
    "batch": ("transfer.md", lambda: transfer.batch_table(transfer.lines())),
    "slopes": (
        "results/checks.md",
        lambda: scaling_checks.table(measured.read(scaling_checks.DATA)),
    ),
    "verdicts": (
        "results/checks.md",
        lambda: scaling_checks.verdicts(measured.read(scaling_checks.DATA)),
    ),
    "small verdicts": (
        "results/checks.md",
        lambda: scaling_checks.verdicts(
            measured.read(scaling_checks.CPU_DATA), scaling_checks.RECIPES
        ),
    ),
    "heads": (
        "results/checks.md",
        lambda: qk_norm_gradients.table(measured.read(qk_norm_gradients.DATA)),
    ),
    "planted": (
        "results/checks.md",
        lambda: planted_errors.table(measured.read(planted_errors.DATA)),
    ),
    "alarms": (
        "results/checks.md",
        lambda: planted_errors.alarms(measured.read(planted_errors.DATA)),
    ),
    "loss on a CPU": ("benchmarks.md", lambda: timings.loss_table(timings.found("cpu", "loss"))),
    "loss on an H200": (
        "benchmarks.md",
        lambda: timings.loss_table(timings.found("cuda", "loss")),
    ),
    "two trees": ("benchmarks.md", lambda: two_trees.table(two_trees.found())),
    "waiting": ("benchmarks.md", lambda: timings.waiting_table(timings.found("cpu", "waiting"))),
    "slots on a CPU": (
        "benchmarks.md",
        lambda: timings.slots_table(timings.found("cpu", "slots")),
    ),
    **{
        f"slots at width {width}": ("benchmarks.md", partial(_slots, f"slots-{width}"))
        for width in (128, 256, 512)
    },
    "first step": (
        "benchmarks.md",
        lambda: timings.first_step_table(timings.found("cuda", "first-step")),
    ),
    "optimizer on a CPU": (
        "benchmarks.md",
        lambda: timings.optimizer_table(timings.found("cpu", "optimizer")),
    ),
    "optimizer on an H200": (
        "benchmarks.md",
        lambda: timings.optimizer_table(timings.found("cuda", "optimizer")),
    ),
    "beta rules": ("results/betas.md", lambda: beta_rules.table(beta_rules.found())),
    "token rule": ("results/betas.md", lambda: token_rule.table(token_rule.found("cpu"))),
    "token rule on a GPU": (
        "results/betas.md",
        lambda: token_rule.table(token_rule.found("gpu")),
    ),
    "ladders again": (
        "results/betas.md",
        lambda: recipe_again.table(["default", "strong-global"]),
    ),
    "depth on a CPU": ("results/cpu.md", cpu_sweeps.depth_table),
    "past the critical batch": ("results/cpu.md", cpu_sweeps.batch_table),
    "begins losses": ("results/cpu.md", begins.losses_table),
    "begins gains": ("results/cpu.md", begins.gains_table),
    "two scales losses": ("results/cpu.md", two_scales.losses_table),
    "two scales gains": ("results/cpu.md", two_scales.gains_table),
    "batch with tokens": (
        "results/horizon.md",
        lambda: batch_with_tokens.table(batch_with_tokens.found()),
    ),
    "decay": (
        "results/horizon.md",
        lambda: decay_horizon.short_table(decay_horizon.found()),
    ),
    "every decay": (
        "results/horizon.md",
        lambda: decay_horizon.table(decay_horizon.found()),
    ),
    "regret": ("recipes.md", lambda: regret.table(regret.found())),
    "recipes compared": ("recipes.md", recipes_compared.table),
    "muon": ("optimizers.md", muon.table),
    "models": ("results/checks.md", lambda: model_checks.table(measured.read(model_checks.DATA))),
}
"""By the name of its markers: the page, and what makes it."""


def with_table(page: str, name: str, table: str) -> str:
    """A page with what is between the markers of that name made anew."""
    begin, end = f"<!-- {name}: begin (make docs) -->\n", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    assert found, f"{name}: no marker"
    assert ended, f"{name}: no end"
    return f"{before}{begin}{table}\n{end}{after}"


def main() -> None:
    """Rewrite the pages."""
    for name, (page, make) in TABLES.items():
        path = ROOT / "docs" / page
        text = with_table(path.read_text(encoding="utf-8"), name, make())
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
