"""What docs/results.md and docs/results/headline.md say of kept measurements beside their verdicts.

    python benchmarks/readings.py

Nothing is trained but for `--olmo2`, a coordinate check of a tiny OLMo-2 over depth (a minute).
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from recipes_compared import paired

import completedp as cdp
from completedp.evidence.figures.bowl import bottom
from completedp.evidence.figures.figure import spread, student
from completedp.evidence.figures.lr_depth import FIGURE as LR_DEPTH
from completedp.evidence.figures.run import raw_of
from completedp.studies.store import Store

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
STORE = ROOT / "benchmarks" / "data" / "headline" / "headline-gpu.db.xz"
STORES = ROOT / "benchmarks" / "data" / "stores"
BASE_GAIN = ROOT / "benchmarks" / "data" / "base-gain-gpu.json"
ROUND = 64
"""Trials of a search that a median is of."""


def curves(name: str) -> dict[tuple[str, int], dict[float, dict[int, float]]]:
    """A sweep's losses by line and factor, octave, seed."""
    found: dict[Any, Any] = defaultdict(lambda: defaultdict(dict))
    for row in raw_of(RESULTS / f"{name}.json.xz"):
        found[row["line"], row["factor"]][row["octaves"]][row["seed"]] = row["loss"]
    return found


def at_one_rate() -> None:
    """The batch rule against training that is not scaled, where both have the same rate."""
    of = curves("lr-batch")
    for factor in (4, 8):
        raised = math.log2(factor) / 2  # what the rule multiplies the rate by
        rule, none = of["square-root rule", factor], of["no rule for the batch", factor]
        for octave, seeds in sorted(rule.items()):
            both = [loss - _between(none, octave + raised, seed) for seed, loss in seeds.items()]
            both = [each for each in both if math.isfinite(each)]
            if len(both) > 2:
                half = student(len(both) - 1) * np.std(both, ddof=1) / math.sqrt(len(both))
                print(
                    f"batch x{factor}, rule at {octave:+g}: {np.mean(both):+.3f} +- {half:.3f} nats"
                    f" above no rule at the same rate, {len(both)} seeds"
                )


def depths() -> Iterator[tuple[str, int, int, float, float]]:
    """Of every line, two depths, and how far its best rate moves from one to the other, with half
    of its interval."""
    at = LR_DEPTH.sizes["gpu"]
    of, first = curves("lr-depth"), at.setting.base.depth
    for line in at.lines:
        optima = [bottom(of[line.name, factor], at.over) for factor in at.factors]
        begins = first * round(line.start.depth)
        last, deepest = optima[-1], begins * at.factors[-1]
        for factor, optimum in zip(at.factors[:-1], optima[:-1], strict=True):
            if optimum.octaves and optimum.errors and last.octaves and last.errors:
                moved = last.octaves[0] - optimum.octaves[0]
                half = spread([optimum.errors[0], last.errors[0]], at.over.seeds)
                yield line.name, begins * factor, deepest, moved, half


def over_depth() -> None:
    """How far the best rate moves from each depth to the deepest, and what the rules are worth."""
    for line, begins, deepest, moved, half in depths():
        print(f"{line}, depth {begins} to {deepest}: {moved:+.2f} +- {half:.2f} octaves")
    of = curves("lr-depth")
    rules, none = best_rate(of["completedp, alpha 1", 8]), best_rate(of["mup", 8])
    mean, low, high = paired(none, rules)
    print(f"depth x8: without rules for depth {mean:.3f} +- {(high - low) / 2:.3f} nats higher")


def over_the_base() -> None:
    """What a larger batch costs over the base's own loss, at its best rate and tuned again."""
    numbers = json.loads((RESULTS / "lr-batch.json").read_text())["numbers"]
    first: dict[str, float] = {}
    for row in numbers["curves"]:
        base = first.setdefault(row["line"], row["loss"])
        kept, tuned = row["loss"] + row["cost"] - base, row["loss"] - base
        print(
            f"{row['line']} x{row['factor']}: {kept:+.3f} nats over its base's {base:.3f}, "
            f"{tuned:+.3f} with the rate tuned again"
        )


def memories_kept() -> None:
    """What kept betas gain over the rule's, from two pairs of betas, at the best of their rates."""
    of = curves("lr-batch")
    for line in ("square-root rule", "square-root rule, longer memory"):
        for factor in (2, 4, 8):
            rule, kept = (best_rate(of[name, factor]) for name in (line, f"{line}, betas kept"))
            mean, low, high = paired(rule, kept)
            print(
                f"{line} x{factor}: {np.mean(rule):.3f}, betas kept {np.mean(kept):.3f}, lower by "
                f"{mean:.3f} +- {(high - low) / 2:.3f}"
            )
    short, long = (
        best_rate(of[line, 1]) for line in ("square-root rule", "square-root rule, longer memory")
    )
    mean, low, high = paired(short, long)
    print(f"longer memories at the base: lower by {mean:.3f} +- {(high - low) / 2:.3f}")


def token_rules() -> None:
    """What each rule for the tokens ends at over x8, at the best of its rates, beside no rule."""
    of = curves("lr-tokens")
    none = best_rate(of["no rule for tokens", 8])
    for line in ("square-root rule", "fourth-root rule", "tokens by batch"):
        rule = best_rate(of[line, 8])
        mean, low, high = paired(rule, none)
        print(
            f"{line} x8: {np.mean(rule):.3f}, no rule {np.mean(none):.3f}, lower by {mean:.3f} "
            f"+- {(high - low) / 2:.3f}"
        )


def best_rate(curve: dict[float, dict[int, float]]) -> list[float]:
    """The losses at the best of the rates that all seeds were trained at, by seed."""
    most = max(map(len, curve.values()))
    every = [[seeds[seed] for seed in sorted(seeds)] for seeds in curve.values()]
    return min((each for each in every if len(each) == most), key=np.mean)


def _between(curve: dict[float, dict[int, float]], octave: float, seed: int) -> float:
    """A seed's loss at an octave, on a straight line between its neighbours."""
    there = sorted(o for o, seeds in curve.items() if seed in seeds)
    if not there or not there[0] <= octave <= there[-1]:
        return math.nan
    return float(np.interp(octave, there, [curve[o][seed] for o in there]))


def seeds_of_decay() -> None:
    """Every seed of the whole rule at eight times the batch, and what independent decay repeats."""
    of = curves("wd-batch")
    for octave, seeds in sorted(of["whole rule", 8].items()):
        shown = ", ".join(f"{loss:.3f}" for _, loss in sorted(seeds.items()))
        print(f"decay, whole rule x8, {octave:+g} octaves: {shown}")
    for factor in (1, 2, 4, 8):
        one, other = of["whole rule", factor], of["independent decay, its rule", factor]
        pairs = [(one[o][s], other[o][s]) for o in one for s in one[o] if s in other.get(o, {})]
        apart = max(abs(a - b) for a, b in pairs)
        print(f"independent decay x{factor}: at most {apart:.3f} from the whole rule")


@contextmanager
def kept_store(packed: Path) -> Iterator[Store]:
    """A store of the repository, unpacked while it is read."""
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(lzma.decompress(packed.read_bytes()))
        file.flush()
        with Store(file.name) as store:
            yield store


def medians(packed: Path, name: str, site: int) -> list[float]:
    """The median losses of a search of a store, some trials at a time, at one site."""
    with kept_store(packed) as store:
        rows = store.study(name).trials(curves=False)
    losses = [row.loss for row in rows if row.status == "ok" and row.site == site]
    each = range(0, len(losses), ROUND // 2)
    return [float(np.median(losses[i : i + ROUND // 2])) for i in each]


def rounds(packed: Path, *names: str) -> None:
    """All of them of some searches."""
    for name in names:
        for site in range(2):
            if found := medians(packed, name, site):
                print(f"{name}, site {site}: {' '.join(f'{each:.3f}' for each in found)}")


def wider_base() -> None:
    """What a base of width 128 began from, and how far seeds there are from the others."""
    arms = json.loads(BASE_GAIN.read_text())["scales"][0]
    for arm, losses in arms["losses"].items():
        far = [loss - np.mean([x for x in losses if x != loss]) for loss in losses]
        above = " ".join(f"{each:+.3f}" for each in sorted(far, reverse=True))
        print(f"{arm}, above the mean of the other seeds: {above}")
    fall = (arms["means"]["global"] - np.mean(arms["longer"]["2"])) / math.log(2)
    with kept_store(STORES / "base-gain.db.xz") as store:
        for arm in ("uniform", "global", "module"):
            found = (store.study(arm).get_note("found") or {})["evidence"]
            losses = {c["candidate"]: c["losses"] for c in found["rungs"][0]["standings"]}
            means = {name: float(np.mean(each)) for name, each in losses.items()}
            start, chosen = means["start"], means[found["chosen"]]
            print(
                f"{arm}, on the ladder's seeds: start {start:.4f}, chosen {chosen:.4f}, which is "
                f"{math.exp((start - chosen) / fall):.2f} times the tokens; without its rates "
                f"{means.get('without lr', math.nan):.4f}"
            )


def slopes() -> None:
    """What losses at the headline's base are worth in tokens of `global`."""
    base = json.loads((RESULTS / "headline.json").read_text())["numbers"]["scales"][0]
    means, longer = base["means"], float(np.mean(base["longer"]["1.5"]))
    fall = (means["global"] - longer) / math.log(1.5)
    print(f"global falls by {fall:.4f} nats for a factor of e in tokens")
    for what, loss in (("uniform's start", 3.552), ("global's start", 3.581)):
        print(f"{what} to module: {math.exp((loss - means['module']) / fall):.2f} times")
    for what, loss in (("types", 3.454), ("groups", 3.452)):
        print(f"{what} over global: {math.exp((means['global'] - loss) / fall):.2f} times")
    print(f"1.75 times over global: {means['global'] - fall * math.log(1.75):.3f}")


def searches() -> None:
    """Losses on fresh seeds along the curves of search-curves."""
    raw = raw_of(RESULTS / "search-curves.json.xz")
    start = float(np.mean(raw["start"]))
    print(f"search-curves: the best global rate {start:.4f}")
    for search in dict.fromkeys(row["search"] for row in raw["curves"]):
        rows = [row for row in raw["curves"] if row["search"] == search]
        shown = ", ".join(f"{row['trials']}: {row['loss']:.4f}" for row in rows)
        print(f"  {search}: {shown}; {start - rows[-1]['loss']:.3f} below it")


def planes() -> None:
    """Where the landscape's losses jump, and how far the best is from the global rates."""
    raw = raw_of(RESULTS / "landscape.json.xz")
    octaves = np.array(raw["octaves"])
    middle = int(np.argmin(np.abs(octaves)))
    for name, plane in raw["planes"].items():
        losses, first = np.array(plane["losses"]), name.split(" and ")[0]
        i, j = np.unravel_index(np.argmin(losses), losses.shape)
        print(
            f"{name}: best {losses[i, j]:.3f} at {octaves[i]:+.1f} and {octaves[j]:+.1f} octaves, "
            f"{losses[middle, middle] - losses[i, j]:.3f} below the global rates"
        )
        for row in (0, len(octaves) // 4, middle, 3 * len(octaves) // 4, len(octaves) - 1):
            along = losses[:, row]
            smooth = np.array([np.median(along[max(0, k - 2) : k + 3]) for k in range(len(along))])
            steps = smooth[4:] - smooth[:-4]
            k = int(np.argmax(steps))
            print(
                f"  other at {octaves[row]:+.1f}: along {first} it rises most, by {steps[k]:.2f}, "
                f"from {octaves[k]:+.1f} to {octaves[k + 4]:+.1f} octaves"
            )


def grid() -> None:
    """What beta1's largest value does to the paper's grid of global values."""
    raw = raw_of(RESULTS / "global-baseline.json.xz")
    losses = np.array([math.inf if x is None else x for x in raw["losses"]])
    column = list(raw["grid"]).index("one_minus_beta1")
    levels = np.array(raw["levels"])[:, column]
    for level, value in enumerate(raw["grid"]["one_minus_beta1"]):
        print(f"1 - beta1 {value:g}: median {np.median(losses[levels == level]):.3f}")


def olmo2() -> None:
    """How far sizes are from theory over the depth of a tiny OLMo-2."""
    import transformers

    def make(scale: cdp.Scale) -> Any:
        heads = scale.width // 16
        config = transformers.Olmo2Config(
            vocab_size=257,
            hidden_size=scale.width,
            num_hidden_layers=scale.depth,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            intermediate_size=2 * scale.width,
            use_cache=False,
            eos_token_id=None,
        )
        return transformers.Olmo2ForCausalLM(config)

    for depths in ((2, 4, 8), (8, 16, 32)):
        print(cdp.coordcheck(make, widths=(64,), depths=depths, seeds=2, quiet=True))


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--olmo2", action="store_true")
    warnings.simplefilter("ignore")
    if parser.parse_args().olmo2:
        olmo2()
        return
    over_depth()
    over_the_base()
    at_one_rate()
    memories_kept()
    token_rules()
    seeds_of_decay()
    rounds(STORE, "global", "module")
    rounds(STORES / "second-search.db.xz", "global", "module")
    rounds(STORES / "base-gain.db.xz", "uniform", "global", "module")
    wider_base()
    slopes()
    searches()
    planes()
    grid()


if __name__ == "__main__":
    main()
