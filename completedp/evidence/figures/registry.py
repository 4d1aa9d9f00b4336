"""Every figure by its name, in the order of the paper."""

from __future__ import annotations

from completedp.common.checks import check_one_of
from completedp.evidence.figures import (
    annealing,
    base_size,
    downstream,
    global_baseline,
    headline,
    landscape,
    lr_batch,
    lr_depth,
    lr_tokens,
    lr_width,
    module_transfer,
    sde,
    search_curves,
    tokens_exponent,
    tokens_law,
    wd_batch,
)
from completedp.evidence.figures.figure import Figure

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        lr_width.FIGURE,
        lr_depth.FIGURE,
        lr_batch.FIGURE,
        wd_batch.FIGURE,
        lr_tokens.FIGURE,
        tokens_law.FIGURE,
        tokens_exponent.FIGURE,
        annealing.FIGURE,
        sde.FIGURE,
        landscape.FIGURE,
        search_curves.FIGURE,
        module_transfer.FIGURE,
        base_size.FIGURE,
        global_baseline.FIGURE,
        downstream.FIGURE,
        headline.FIGURE,
    )
}


def figure_named(name: str) -> Figure:
    """The figure of that name, or an error that lists them."""
    check_one_of("figure", name, FIGURES)
    return FIGURES[name]
