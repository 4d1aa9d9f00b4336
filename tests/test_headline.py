"""The headline: its arithmetic on planted losses, and its arms in one study as they are alone."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import OPTIONS, write_tokens

from completedp.evidence.figures.headline import (
    FIGURE,
    FROM_UNIFORM,
    GLOBAL,
    MODULE,
    UNIFORM,
    Headline,
    HeadlineSize,
    Run,
    _octaves,
    _paired_half,
)
from completedp.evidence.figures.lab import Lab
from completedp.studies.cells import Wanted
from completedp.studies.listed import listed_spec, plan_of
from completedp.studies.spec import Site
from completedp.studies.store import Store

AT = replace(FIGURE.sizes["gpu"], seeds=(8, 8, 8, 8))
FALL = 0.15
"""Nats for e times the tokens."""


def planted(
    speedup: float, noise: float, over_uniform: float = 2.0, at: HeadlineSize = AT
) -> dict[Run, list[float]]:
    """Losses of arms that need so many times the tokens of `module`, with noise between seeds."""
    rng = np.random.default_rng(1)
    needed = {MODULE: 1.0, GLOBAL: speedup, UNIFORM: over_uniform, FROM_UNIFORM: 0.8}
    losses = {}
    for run in FIGURE.runs(at):
        level = 3.0 - 0.3 * run.place + FALL * math.log(needed[run.arm] / run.length)
        seeds = 1 if run.octave else AT.seeds[run.place]
        losses[run] = (level + 0.02 * run.octave**2 + noise * rng.normal(size=seeds)).tolist()
    return losses


def test_the_speed_up_is_that_of_the_tokens() -> None:
    """Without noise the speed-ups over both baselines come out as planted, at every scale."""
    found = Headline(sizes={}).judge(AT, planted(1.4, 0.0), {})
    numbers = found.numbers
    for row in numbers["scales"]:
        assert row["speedup_over_global"]["speedup"] == pytest.approx(1.4)
        assert row["speedup_over_uniform"]["speedup"] == pytest.approx(2.0)
    assert found.summary["target"]["flops_ratio"] > 500
    assert found.summary["base"]["speedup"] == pytest.approx(1.4)
    for place in found.summary["base"], found.summary["target"]:
        over = {arm: each["speedup"] for arm, each in place["over"].items()}
        assert over == pytest.approx({GLOBAL: 1.4, UNIFORM: 2.0})
    assert numbers["regret"] == {GLOBAL: 0.0, MODULE: 0.0}


def test_a_second_arm_by_module_has_speed_ups_of_its_own() -> None:
    """Those of the arms that it is tuned as long as, as planted; the first one's stay as they
    were."""
    at = replace(AT, arms=(UNIFORM, GLOBAL, MODULE, FROM_UNIFORM))
    rows = Headline(sizes={}).judge(at, planted(1.4, 0.0, at=at), {}).numbers["scales"]
    for row in rows:
        of = {arm: each["speedup"] for arm, each in row[f"speedup_of_{FROM_UNIFORM}"].items()}
        assert of == pytest.approx({GLOBAL: 1.4 / 0.8, UNIFORM: 2.0 / 0.8})
        assert row["speedup_over_global"]["speedup"] == pytest.approx(1.4)
        assert row[f"speedup_over_{FROM_UNIFORM}"]["speedup"] == pytest.approx(0.8)


def test_regret_is_of_one_seed() -> None:
    """What seeds differ by does not count as lost by not tuning at the target."""
    losses = planted(1.4, 0.0)
    last = len(AT.scales) - 1
    for run in (run for run in losses if run.place == last):
        losses[run] = [loss + 0.1 * seed for seed, loss in enumerate(losses[run])]
    lower = Run(MODULE, last, octave=AT.around[0])
    losses[lower] = [losses[Run(MODULE, last)][0] - 0.004]
    found = Headline(sizes={}).judge(AT, losses, {}).numbers["regret"]
    assert found == {GLOBAL: 0.0, MODULE: pytest.approx(0.004)}


def test_the_interval_covers_the_truth() -> None:
    """With noise the interval has the planted value in it, and widens with the noise."""
    widths = []
    for noise in (0.002, 0.01):
        found = Headline(sizes={}).judge(AT, planted(1.4, noise), {}).summary["target"]
        assert found["low"] < 1.4 < found["high"]
        widths.append(found["high"] - found["low"])
    assert widths[1] > 3 * widths[0]


def test_an_arm_s_own_noise_is_in_the_interval_over_it() -> None:
    """Seeds of the paper's baseline that differ widen what is said over it, and nothing else."""
    calm, noisy = planted(1.4, 0.002), planted(1.4, 0.002)
    for run in noisy:
        if run.arm == UNIFORM:
            noisy[run] = [loss + 0.05 * (-1) ** seed for seed, loss in enumerate(noisy[run])]
    (before, after) = (
        Headline(sizes={}).judge(AT, losses, {}).numbers["scales"][-1] for losses in (calm, noisy)
    )
    assert after["speedup_over_global"] == before["speedup_over_global"]
    widths = [
        row["speedup_over_uniform"]["high"] - row["speedup_over_uniform"]["low"]
        for row in (before, after)
    ]
    assert widths[1] > 3 * widths[0]


def test_the_regret_has_the_noise_of_runs_that_share_a_seed() -> None:
    """What a seed does to all arms alike does not widen its interval; what it does to one does."""
    rng = np.random.default_rng(0)
    widths = []
    for alike, alone in ((0.0, 0.001), (0.1, 0.001), (0.1, 0.01)):
        losses = planted(1.4, alone)
        for run in losses:
            seeds = np.array(losses[run])
            losses[run] = (seeds + alike * np.arange(len(seeds))).tolist()
        finding = Headline(sizes={}).judge(AT, losses, {}).findings[-1]
        assert finding.low is not None
        assert finding.high is not None
        widths.append(finding.high - finding.low)
    assert widths[1] == pytest.approx(widths[0])
    assert widths[2] == pytest.approx(10 * widths[0])
    differ = np.array([rng.normal(size=2) @ [1, -1] for _ in range(4_000)])
    halves = [_paired_half(rng.normal(size=(4, 2))) for _ in range(4_000)]
    assert np.mean(np.abs(differ) < np.array(halves)) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("speedup", "verdict"), [(1.5, "pass"), (1.0, "fail")])
def test_the_verdict_follows(speedup: float, verdict: str) -> None:
    """A speed-up clear of 1.3 passes, and none at all fails, on its interval."""
    found = Headline(sizes={}).judge(AT, planted(speedup, 0.001, speedup), {}).findings
    assert found[2].verdict == verdict
    over_uniform = found[4]
    assert over_uniform.claim.endswith("over it, too")
    assert (over_uniform.verdict == "pass") is (verdict == "pass")


def test_a_loss_that_does_not_fall_gives_no_speed_up() -> None:
    """Where longer training does not help the global arm, nothing is claimed."""
    losses = planted(1.4, 0.0)
    losses |= {run: [9.0] * len(x) for run, x in losses.items() if run.length > 1}
    found = Headline(sizes={}).judge(AT, losses, {})
    assert found.summary["target"]["speedup"] is None
    assert found.findings[1].verdict == "not settled"


def test_an_arm_in_the_shared_study_is_the_arm_alone(tmp_path: Path) -> None:
    """Moved from the neutral recipe by its octaves, an arm has the plan of its own recipe."""
    at = FIGURE.sizes["tiny"]
    data = write_tokens(tmp_path)
    with Store(str(tmp_path / "s.db")) as store:
        lab = Lab("headline", "tiny", store, data=data, options=OPTIONS)
        task = lab.task(at.setting)
        neutral, arm = lab.plain_recipe(task, at.setting), lab.recipe(task, at.setting)
    log2 = dict(arm.hyperparameters.log2) | {"lr/type/qkv": 0.7, "one_minus_beta1/type/qkv": -0.4}
    arm = replace(
        arm,
        hyperparameters=replace(arm.hyperparameters, log2=log2),
        schedule=replace(arm.schedule, warmup=0.1, power=1.5),
    )
    names = sorted({"lr/global", "schedule/warmup", "schedule/power", *log2})
    scale = at.setting.base.times(at.scales[-1])
    wanted = Wanted(
        site=Site(scale=scale, rules=neutral.rules),
        octaves=tuple(_octaves(names, neutral, arm).tolist()),
        seed=0,
    )
    moved, alone = plan_of(listed_spec(task, neutral, names), task, wanted), task.plan(arm, scale)
    for one, other in zip(moved.tensors, alone.tensors, strict=True):
        assert (one.lr, one.init_std, one.beta1) == pytest.approx(
            (other.lr, other.init_std, other.beta1)
        )
    assert moved.recipe.schedule.warmup == pytest.approx(0.1)
    assert moved.recipe.schedule.power == pytest.approx(1.5)
