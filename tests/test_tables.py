"""Tables in the docs are those that their data make."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import begins
import beta_rules
import cpu_sweeps
import headline_tables
import ladders
import pytest
import target_again
import timings
import two_scales
from batch_with_tokens import found as found_both
from batch_with_tokens import rows
from data_tables import ROOT, TABLES, with_table
from measured import packed, unpacked
from planted_errors import DATA, NOT_CAUGHT, alarms, read, seen_by, table
from readings import STORE, STORES, depths, medians
from recipes_compared import gains
from results_table import NOT_RUN, PAGE, RESULTS, as_markdown
from results_table import with_table as with_results

from completedp.evidence.check import make_check
from completedp.evidence.config import CheckSettings
from completedp.evidence.figures.headline import times_shown
from completedp.evidence.figures.paper import PLACES
from completedp.evidence.figures.registry import FIGURES
from completedp.evidence.result import _doubts
from completedp.theory.horizon import CRITICAL_BATCH, critical_batch
from completedp.theory.recipe import Recipe
from completedp.theory.rules import Shift
from completedp.theory.scale import Ratios
from completedp.theory.trust import risen_rates


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_their_data(name: str) -> None:
    """`make docs` changes nothing, so every number in these tables has its measurements."""
    page, make = TABLES[name]
    text, made = (ROOT / "docs" / page).read_text(encoding="utf-8"), make()
    assert with_table(text, name, made) == text
    changed = made.replace("0.0", "0.1", 1) if "0.0" in made else made + "1"
    assert with_table(text, name, changed) != text  # the test can fail


def test_what_the_planted_errors_say() -> None:
    """Errors of 1/4 are seen in all but two exponents, errors of 1/2 in all; sound rules pass."""
    cells = [cell for line in table(read(DATA)).splitlines()[2:] for cell in line.split("|")[3:-1]]
    assert not any(NOT_CAUGHT in cell for cell in cells)
    assert sum("1/2" in cell for cell in cells) <= 2
    assert "| 0 of 8 |" in alarms(read(DATA)).splitlines()[2]


def test_a_table_of_planted_errors_can_say_no() -> None:
    """Where the runs with an error are those without it, it is not caught."""
    data = read(DATA)
    shift = Shift(role="residual", hyperparameter="multiplier", axis="depth", by=0.25)
    assert seen_by(data, shift) == ["coordcheck"]
    data["planted"]["multiplier residual depth +0.25"] = data["sound"]["depth"]
    assert seen_by(data, shift) == []


def test_measurements_come_back_from_their_file() -> None:
    """A measurement that was packed is the same again, up to the rounding."""
    kept = read(DATA)["sound"]["depth"]
    assert packed(unpacked(kept)) == kept
    assert unpacked(kept, [3]).slope(("own", "qkv"))[1] is None


def test_every_figure_has_its_place_in_the_results() -> None:
    """Every experiment answers some figure of the paper, and every numbered one is there."""
    assert {name for place in PLACES for name in place.figures} == set(FIGURES)
    places = " ".join(place.where for place in PLACES)
    assert all(str(number) in places for number in range(1, 19))


def test_the_page_of_results_is_that_of_its_files() -> None:
    """`make docs` changes nothing on it."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_results(page) == page
    for name in FIGURES:
        has_section = f"### {name}" in page
        assert has_section == (RESULTS / f"{name}.json").exists()


def finding(verdict: str, measured: float | None) -> dict[str, Any]:
    ends = {"low": None, "high": None} if measured is None else {"low": 0.1, "high": 0.3}
    return {"claim": "a | b", "measured": measured, "unit": "octaves", "verdict": verdict} | ends


def curve(factor: int, drift: float | None, *, diverges: bool = False) -> dict[str, Any]:
    half = 0.25 if drift else None
    cost = None if diverges else 0.0125
    found = {"factor": factor, "drift": drift, "half": half, "cost": cost, "diverges": diverges}
    return {"line": "by the rules", "loss": 2.125} | found


@pytest.mark.parametrize("size", ["cpu", "gpu"])
def test_results_are_read_from_their_files(size: str, tmp_path: Path) -> None:
    """Verdicts are counted, every finding and a sweep's drifts are listed; a cpu size does not
    count as run."""
    result = {
        "size": size,
        "data": "tokens",
        "claim": "It stays",
        "seconds": 61.2,
        "device": "a GPU",
        "versions": {"torch": "2.11"},
        "findings": [finding("pass", 0.2), finding("fail", -math.pi), finding("not settled", None)],
        "numbers": {
            "curves": [curve(1, 0.0), curve(2, 0.5), curve(4, -1.0, diverges=True), curve(8, None)]
        },
    }
    (tmp_path / "lr-width.json").write_text(json.dumps(result))
    made = as_markdown(tmp_path)
    assert "[lr-width](#lr-width): 1 pass, 1 fail, 1 not settled" in made
    assert (f"not settled at cpu size; {NOT_RUN}" in made) == (size == "cpu")
    assert f"`completedp figure lr-width --size {size} --data tokens --out docs/results`" in made
    assert "| a &#124; b | -3.14 octaves | 0.1 to 0.3 | fail |" in made
    assert "| a &#124; b |  |  | not settled |" in made
    drifts = "+0.50 +- 0.25; 2.125 (0.013) | -1.00 +- 0.25; 2.125 (diverges) | not bracketed"
    assert f"| octaves of drift; lowest loss (lost) | x2 | x4 | x8 |\n{'| --- ' * 4}|" in made
    assert f"| by the rules | {drifts} |" in made


def test_the_seconds_of_a_plan_in_the_readme_are_those_measured() -> None:
    """README and the page of benchmarks do not differ."""
    seconds = timings.found("cpu", "waiting")["seconds"]
    said = f"{seconds['plan of the reference model, 67B parameters']:.2g} s for a model of 67B"
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")


def test_what_the_readme_says_of_the_default_recipe_was_measured() -> None:
    """Its gains over usual values and over the first release's, with intervals, are those of the
    runs."""
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for other in ("first-release", "adamw-reference"):
        found = [gains(other)["stdlib", model] for model in ("reference", "qwen3")]
        shown = [f"{mean:.2f}{{}} [{low:.2f}, {high:.2f}]" for mean, low, high in found]
        assert any(shown[0].format(unit) in said for unit in ("", " nats"))
        assert shown[1].format("") in said


def test_what_the_readme_says_of_its_picture_was_measured() -> None:
    """How far its best learning rates move, and what keeping them costs, are lr-width's numbers."""
    written = json.loads((RESULTS / "lr-width.json").read_text(encoding="utf-8"))
    last = {row["line"]: row for row in written["numbers"]["curves"] if row["factor"] == 8}
    moved = {line: abs(row["drift"]) for line, row in last.items()}
    wide = last["completedp, from x2 on"]
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"moves by {moved['sp']:.1f} octaves without" in said
    most = {
        line: max(abs(row["drift"]) for row in written["numbers"]["curves"] if row["line"] == line)
        for line in moved
    }
    assert f"With them it moves by {moved['completedp']:.1f}, and by up to " in said
    assert f"up to {most['completedp']:.1f} on the way" in said
    assert f"From width 128 it moves by up to {most[wide['line']]:.1f} with them, and by " in said
    assert f"by {abs(wide['drift']):.1f} +- {wide['half']:.1f} to 1,024" in said
    assert wide["cost"] < 0.00005  # "costs nothing"
    drifts = {(begins, deepest): (moved, half) for _, begins, deepest, moved, half in depths()}
    moved, half = drifts[8, 32]
    assert f"from depth 8 at x4 ({moved:.2f} +- {half:.2f} octaves to depth 32)" in said


def test_what_the_readme_says_of_the_headline_was_measured() -> None:
    """Its speed-ups, over both baselines at the base and at the target, are those of the figure and
    of the second search."""
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    base, *_, target = headline_tables.found()["numbers"]["scales"]
    assert f"at {target['flops_ratio']:.0f} times the FLOP" in said
    first, second = (
        {arm: times_shown(row[f"speedup_over_{arm}"]) for arm in ("global", "uniform")}
        for row in (
            of["numbers"]["scales"][-1] for of in (target_again.both(), target_again.second())
        )
    )
    assert f"need {first['global']} times the tokens for the same loss" in said
    assert f"A second search of both says {second['global']}." in said
    assert f"need {first['uniform']} times by the first search, and {second['uniform']} by" in said
    two = [times_shown(base[f"speedup_over_{arm}"]) for arm in ("global", "uniform")]
    assert f"At the base it is {two[0]} and {two[1]} times in the first search" in said
    wider = headline_tables.wider_base()["numbers"]["scales"][-1]
    assert f"{wider['flops_ratio']:.0f} times the FLOP" in said
    assert f"({times_shown(wider['speedup_over_global'])} times the tokens)" in said


def test_what_the_readme_says_of_larger_batches_was_measured() -> None:
    """What a batch of four or eight times costs is what the figure and the ladders have."""
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    costs: dict[str, list[float]] = {"power": [], "keep": []}
    for name in ("default", "strong-global"):
        evidence = Recipe.shipped(name).evidence
        assert evidence is not None
        quarter, last = evidence.rungs[-2:]
        assert last.scale.batch == 4 * quarter.scale.batch
        for rule, each in costs.items():
            means = [rung.of(f"beta_rule={rule}") for rung in (last, quarter)]
            more, less = (standing.mean for standing in means if standing is not None)
            each.append(more - less)
    rule, kept = ("{:.2f} and {:.2f}".format(*each) for each in costs.values())
    assert f"costs `default` and `strong-global` {rule} by the rule, and {kept} with" in said
    written = json.loads((RESULTS / "lr-batch.json").read_text(encoding="utf-8"))
    curves = written["numbers"]["curves"]
    ends = {(row["line"], row["factor"]): row["loss"] + row["cost"] for row in curves}
    eight = {line: ends[line, 8] - ends[line, 1] for line, factor in ends if factor == 8}
    assert f"costs {eight['square-root rule']:.1f} nats by the printed rule" in said
    tuned = {row["line"]: row["loss"] for row in curves if row["factor"] == 8}
    above = tuned["square-root rule"] - tuned["no rule for the batch"]
    assert f"which is {above:.2f} more than no rule" in said
    longer = [eight[f"square-root rule, longer memory{x}"] for x in ("", ", betas kept")]
    assert {f"{each:.1f}" for each in longer} == {"0.1"}  # "it costs 0.1 either way"


def test_what_is_said_of_where_values_by_module_begin_was_measured() -> None:
    """The README and the page have the gains of the four searches."""
    found = begins.gains()
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    base, last = ("{:.3f} [{:.3f}, {:.3f}]".format(*each) for each in found["module", "global"])
    assert f"they gain {base} nats at the base over global values with as many trials" in said
    assert f"as many trials, and {last} at 25 times the FLOP" in said
    page = " ".join((ROOT / "docs/results/cpu.md").read_text(encoding="utf-8").split())
    first = [found[arm, start][0][0] for arm, start in begins.GAINS[:4]]
    assert "{:.3f} and {:.3f} nats over what they began with".format(*first[:2]) in page
    assert "global values gain {:.3f} and {:.3f}".format(*first[2:]) in page
    mean, low, high = found["uniform", "global"][1]
    assert f"{-mean:.3f} [{-high:.3f}, {-low:.3f}] above *global*" in page
    assert f"is worth {math.exp(0.01 / begins.worth()):.2f} times the tokens" in page


def test_what_is_said_of_searching_at_two_scales_was_measured() -> None:
    """The gains, and that every search has them, are those of the kept losses."""
    over = {
        arm: two_scales.gain((two_scales.SITES, "module"), (two_scales.SITES, arm), 1)
        for arm in ("shared global", "global")
    }
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "keep {:.3f} [{:.3f}, {:.3f}] there, each of them ahead".format(*over["global"]) in said
    page = " ".join((ROOT / "docs/results/cpu.md").read_text(encoding="utf-8").split())
    assert f"by {over['shared global'][0]:.3f} nats at 25 times the FLOP" in page
    worth = math.exp(over["global"][0] / begins.worth())
    assert f"by {over['global'][0]:.3f}, or {worth:.2f} times the tokens" in page
    assert {f"{low:.3f}" for _, low, _ in over.values()} == {"-0.001"}
    module = two_scales.means(two_scales.SITES, "module", 1)
    for arm in over:
        others = two_scales.means(two_scales.SITES, arm, 1)
        assert all(mine < other for mine, other in zip(module, others, strict=True))
    longer = two_scales.means(two_scales.LONG, "module", 0)
    assert f"({longer[0]:.4f} and {longer[1]:.4f} with values by module" in page


def test_what_the_headline_says_of_its_ladders_was_measured() -> None:
    """The gains of both searches over their starts, where the arms stood on the last rung, and the
    medians of their last rounds."""
    said = " ".join((ROOT / "docs/results/headline.md").read_text(encoding="utf-8").split())
    first, second = (
        "{:.3f} [{:.3f}, {:.3f}]".format(*ladders.gain("headline", name))
        for name in ("module", "module-1")
    )
    assert f"start *module* gains {first} there, and {second} in the second search" in said
    stood = {
        arm: [f"{ladders.chosen('headline', name).mean:.3f}" for name in (arm, f"{arm}-1")]
        for arm in ("uniform", "global", "module")
    }
    uniform, tuned, module = (" and ".join(each) for each in stood.values())
    assert f"({uniform}, where *global* has {tuned} and *module* {module})" in said
    ends = [medians(store, "module", 1) for store in (STORE, STORES / "second-search.db.xz")]
    first, second = (f"({each[0]:.3f} to {each[-1]:.3f}" for each in ends)
    assert f"{first} in six rounds); that of the second was level {second})" in said


def test_what_is_said_of_ways_to_search_was_measured() -> None:
    """What `staged` and `global` come to on average, chosen and recommended."""
    said = " ".join((ROOT / "docs/results/search.md").read_text(encoding="utf-8").split())
    chosen, recommended = (
        [
            statistics.fmean(of("ways", f"{way}-{seed}").mean for seed in (0, 1))
            for way in ("staged", "global")
        ]
        for of in (ladders.chosen, ladders.recommended)
    )
    shown = [f"{each:.3f}" for each in (*chosen, *recommended)]
    assert f"({shown[0]} and {shown[1]} on average, {shown[2]} and {shown[3]} by what" in said


def test_what_a_failing_check_says_of_one_seed_was_measured() -> None:
    """How often sound rules failed on one seed is what the kept checks have."""
    (row,) = (line for line in alarms(read(DATA)).splitlines() if line.startswith("| coordcheck |"))
    failed, of = row.rstrip(" |").rpartition("| ")[2].split(" of ")
    (said,) = _doubts(make_check(settings=CheckSettings(seeds=1)))
    assert f"failed {failed} times in {of} " in said


def test_what_a_caution_says_of_r_was_measured() -> None:
    """What a large r cost the default recipe, over a quarter of the batch for as many tokens, is
    what its ladder and the runs with kept betas have."""
    recipe = Recipe.default()
    assert recipe.evidence is not None
    losses = [rung.of("beta_rule=keep") for rung in recipe.evidence.rungs]
    second, third, last = (standing.mean for standing in losses[1:] if standing is not None)
    (kept,) = (
        each
        for row in beta_rules.found()["scales"]
        for rule, octaves, each in row["losses"]
        if row["scale"]["batch"] == 8 * recipe.base.batch and (rule, octaves) == ("keep", 0.0)
    )
    costs = statistics.fmean(kept) - second, last - third
    (said,) = risen_rates(recipe, Ratios(batch=16, tokens=16))
    assert f"ended {costs[0]:.2f} to {costs[1]:.2f} nats above" in said


def test_what_the_readme_says_of_adamw_was_measured() -> None:
    """Its time with a group for each module, against torch's with one, is that of the benchmark."""
    ratios = timings.found("cuda", "optimizer")["ratios"].values()
    times = sorted(ratio["completedp_over_one_group"] for ratio in ratios)
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"takes {times[0]:.2f} to {times[-1]:.2f} of the time of torch's with one" in said


@pytest.mark.parametrize(
    ("name", "file", "form"),
    [
        ("default", "critical-batch", "it is {} thousand tokens +- {} thousand"),
        ("strong-global", "critical-batch-strong-global", "has {} thousand +- {} thousand"),
    ],
)
def test_what_is_said_of_the_critical_batch_was_measured(name: str, file: str, form: str) -> None:
    """The page on horizons, and the recipes that ship, have the numbers of the runs that are
    kept."""
    kept = json.loads((ROOT / f"benchmarks/data/{file}.json").read_text(encoding="utf-8"))
    batch, error = kept["critical_batch"], kept["critical_batch_error"]
    said = " ".join((ROOT / "docs/horizon.md").read_text(encoding="utf-8").split())
    assert form.format(*(f"{each / 1e3:.0f}" for each in (batch, error))) in said
    recipe = Recipe.shipped(name)
    assert critical_batch(recipe) == pytest.approx(batch, abs=0.5)
    assert recipe.provenance[f"{CRITICAL_BATCH}_error"] == pytest.approx(error, abs=0.5)
    if name == "default":
        assert f"Plain gradients have {kept['noise_scale'] / 1e3:.0f} thousand" in said


def test_what_is_said_of_tokens_by_the_batch_was_measured() -> None:
    """How far the best rate moves from each base is what the kept losses have."""
    found = {(steps, times): (drift, half) for steps, times, drift, half, _ in rows(found_both())}
    said = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
    (short, wide), (long, wider) = found[400, 8], found[1600, 8]
    assert f"rises by {short:.1f} +- {wide:.1f} octaves from 400 steps" in said
    assert f"and by {long:.1f} +- {wider:.1f} from 1,600" in said


def test_what_is_said_of_sweeps_on_a_cpu_was_measured() -> None:
    """How far the best rates move there, what that costs, and the critical batch, are what the kept
    sweeps have."""
    said = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
    for name, form in (
        ("depth-sweep", "{:+.2f} +- {:.2f} octaves with alpha 1, at a cost of {:.3f} nats"),
        ("depth-sweep-half", "{:+.2f} +- {:.2f} with 1/2, at {:.3f}"),
    ):
        *_, (_, factor, drift, half, cost, _) = cpu_sweeps.rows(name)
        assert factor == 8
        assert form.format(drift, half, cost) in said
    found = {row[:2]: row[2:] for row in cpu_sweeps.rows(cpu_sweeps.PAST_CRITICAL)}
    drift, half, cost, _ = found["completedp", 16]
    assert f"to x16, {drift:+.2f} +- {half:.2f} octaves away at a cost of {cost:.3f} nats" in said
    drift, half, cost, _ = found["mup", 16]
    assert f"the rate moves by {drift:.2f} +- {half:.2f} at a cost of {cost:.2f}" in said
    drift, half, *_ = found["completedp", 64]
    assert f"{-drift:.2f} +- {half:.2f} octaves too high" in said
    above = [found[line, 64][3] - found[line, 1][3] for line in ("completedp", "mup")]
    page = " ".join((ROOT / "docs/results/cpu.md").read_text(encoding="utf-8").split())
    assert f"as bad, {above[0]:.2f} and {above[1]:.2f} nats above the base" in page
    (first, one, error), (second, other, off) = cpu_sweeps.critical()
    assert (first, second) == (512, 2048)
    assert f"{other:,.0f} +- {off:,.0f} tokens at a batch of 2,048" in page
    assert f"{one:,.0f} +- {error:,.0f} at 512" in page
