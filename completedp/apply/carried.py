"""Carried: whether what carries a plan's multipliers acts, as the model was seen to run."""

from __future__ import annotations

from completedp.apply.multipliers import (
    BUFFERS,
    OUTPUT,
    hook_places,
    hooked,
    of_last_norm,
    why_not_folded,
)
from completedp.apply.probe import Probe
from completedp.apply.tensors import PlanNumbers
from completedp.common.errors import CompletedpError
from completedp.theory.roles import BRANCHES


def check_carried(plan: PlanNumbers, seen: Probe) -> None:
    """Raise where a multiplier would be lost, or would multiply something else."""
    _check_hooks(plan, seen)
    _check_norm(plan, seen)
    _check_buffers(plan, seen)


def hook_caution(plan: PlanNumbers, seen: Probe) -> str | None:
    """What to say of hooks on modules that nobody has seen called."""
    if not seen.is_unseen or not (paths := list(hooked(plan))):
        return None
    more = f" and {len(paths) - 1} more" if paths[1:] else ""
    return (
        f"a hook on {paths[0]}{more} carries a multiplier, and acts only where the forward pass "
        f"calls the module, which nobody saw ({seen.skipped}): see to it that the model does not "
        f"use its weight alone, as F.linear(x, {paths[0]}.weight) does"
    )


def _check_hooks(plan: PlanNumbers, seen: Probe) -> None:
    """A module that is not called has hooks that do nothing."""
    lost = next((path for path in hooked(plan) if path in seen.uncalled), None)
    if lost is None:
        return
    _, branch = hook_places(plan.map)[lost]
    fold = "" if why_not_folded(branch, plan.map, plan.tensors) else ', or use multipliers="fold"'
    raise CompletedpError(
        f"the forward pass does not call {lost}, so that a hook on it, which carries the "
        f"multiplier {hooked(plan)[lost]:.6g}, would do nothing: call the module, {lost}(x), "
        f"where it uses its weight alone, as F.linear(x, {lost}.weight) does{fold}"
    )


def _check_norm(plan: PlanNumbers, seen: Probe) -> None:
    """The factor of tied logits must not go into the embedding's norm."""
    for tensor in of_last_norm(plan.tensors, plan.map):
        if tensor.gain != 1.0 and tensor.name.rpartition(".")[0] in seen.early_norms:
            raise CompletedpError(
                f"{tensor.name} is called before the blocks, so that the multiplier of the logits "
                'cannot be folded into it: use multipliers="hook"'
            )
        if tensor.gain != 1.0 and tensor.name in (unused.name for unused in seen.unused):
            raise CompletedpError(
                f"{tensor.name} has no effect on the logits, whose multiplier would be folded into "
                'it: call its module before the head, or take it out, or use multipliers="hook"'
            )


def _check_buffers(plan: PlanNumbers, seen: Probe) -> None:
    """A buffer that the forward pass does not multiply by carries nothing."""
    for branch, name in BUFFERS.items():
        if plan.ways[branch] != "buffer" or branch not in seen.unused_buffers:
            continue
        if branch == OUTPUT:
            factors = [plan.output_multiplier]
        else:
            factors = [pair[BRANCHES.index(branch)] for pair in plan.residual_multipliers]
        if any(factor != 1.0 for factor in factors):
            raise CompletedpError(
                f"the model has a buffer {name}, and its forward pass does not multiply "
                f"{'the logits' if branch == OUTPUT else f'the {branch} branch'} by it: do so, or "
                'call the buffer otherwise, or use multipliers="fold"'
            )
