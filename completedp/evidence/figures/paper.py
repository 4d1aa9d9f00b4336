"""The paper's figures: what each found, in our words, and which experiments ask the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A figure or table of the paper."""

    where: str
    found: str
    """What the paper found, in our words."""
    figures: tuple[str, ...]
    """Names of the experiments that ask the same."""


PLACES = (
    Place(
        "Figure 1",
        "Values tuned per module on 50M weights: global ones need 2.3 times the training there, "
        "and 1.32 times at about 600 times the compute",
        ("headline",),
    ),
    Place(
        "Figure 2",
        "With the rules the best learning rate stays put over width, and over depth for alpha of "
        "1/2 and 1",
        ("lr-width", "lr-depth"),
    ),
    Place(
        "Figure 3",
        "Over batch sizes it stays put by the square-root rule, and moves without",
        ("lr-batch",),
    ),
    Place(
        "Figure 4",
        "The best weight decay moves with the batch; divided by the root of its growth it stays "
        "put, and by the full rule too",
        ("wd-batch",),
    ),
    Place(
        "Equations 1 and 2",
        "AdamW's steps follow an SDE that the batch rule leaves as it is; less noise alone lowers "
        "the loss",
        ("sde",),
    ),
    Place(
        "Figure 5",
        "With more steps the best learning rate falls, about as one over the root of their number",
        ("lr-tokens",),
    ),
    Place(
        "Section 2.3",
        "The power of 1/2 is taken to agree with the 0.3 to 0.7 that others fitted",
        ("tokens-exponent",),
    ),
    Place(
        "Figure 6",
        "With the token rule the fitted law has a lower floor than without",
        ("tokens-law",),
    ),
    Place(
        "Figure 7",
        "Of all stepwise schedules over five horizons the best of a shorter one never begins the "
        "best of a longer",
        ("annealing",),
    ),
    Place(
        "Figure 8",
        "Over two modules' learning rates, where training breaks has a ragged edge; inside it the "
        "way down is plain",
        ("landscape",),
    ),
    Place(
        "Figures 9 and 10",
        "At 7.2B weights per-module values are better than global ones at downstream tasks too",
        ("downstream",),
    ),
    Place(
        "Figure 11",
        "On the line from global to per-module learning rates the latter are better at every "
        "scale, and near the best",
        ("module-transfer",),
    ),
    Place(
        "Figure 12",
        "For a model of 483M a rate tuned at 58M costs a little, and one tuned at 136M nothing",
        ("base-size",),
    ),
    Place(
        "Figure 13",
        "Without QK norms training is less stable, and the best rate still stays put over depth",
        ("lr-depth",),
    ),
    Place(
        "Figure 14",
        "When tokens grow by the batch alone the best learning rate stays put",
        ("lr-tokens",),
    ),
    Place(
        "Figure 15",
        "For models of several sizes the best rate falls with the number of steps alike",
        ("lr-tokens",),
    ),
    Place(
        "Figure 16",
        "Searches by type and depth: most of the gain is in the types, some in the depths, none in "
        "uncoupling them",
        ("search-curves",),
    ),
    Place(
        "Figure 17",
        "CMA-ES on the same search space, for comparison",
        ("search-curves",),
    ),
    Place(
        "Figure 18",
        "2,048 random trials of global values: which of them matter, and how the best loss falls "
        "with trials",
        ("global-baseline",),
    ),
)


def found_in_paper(figure: str) -> str:
    """What the paper found where it asks what an experiment asks; empty for one of our own.

    >>> found_in_paper("lr-batch")
    'Over batch sizes it stays put by the square-root rule, and moves without.'
    """
    return " ".join(f"{place.found}." for place in PLACES if figure in place.figures)
