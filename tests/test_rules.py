"""The rules against values worked out by hand from the paper's Table 1, and their invariants."""

import itertools
from typing import Any, NamedTuple

import pytest
from helpers import error_of
from hypothesis import given
from hypothesis import strategies as st

import completedp as cdp
from completedp.common.errors import CompletedpError
from completedp.theory.roles import Role
from completedp.theory.rules import AXES, HYPERPARAMETERS, PARAMETERISATIONS, Rules, Shift
from completedp.theory.scale import Ratios

ROLES = [str(role) for role in Role]


class Golden(NamedTuple):
    """Expected factors; `roles` maps a role to (init_std, lr, eps, weight_decay)."""

    ratios: dict[str, float]
    alpha: float
    residual: float
    steps: float
    one_minus_beta: float
    roles: dict[str, tuple[float, float, float, float]]


SIZE = {"width": 4, "depth": 4}
ALL = {"width": 4, "depth": 4, "batch": 4, "tokens": 16}

GOLDEN = {
    "size, alpha 1": Golden(
        SIZE,
        1.0,
        0.25,
        1.0,
        1.0,
        {
            "input_embedding": (1, 1, 0.25, 1),
            "input_bias": (1, 1, 0.25, 1),
            "tied_embedding": (1, 1, 0.25, 1),
            "hidden_weight": (0.5, 0.25, 0.0625, 4),
            "hidden_bias": (1, 1, 0.0625, 1),
            "hidden_norm": (1, 1, 0.0625, 1),
            "qk_norm": (1, 1, 0.25, 1),
            "output_norm": (1, 1, 1, 1),
            "output_weight": (0.25, 0.25, 1, 4),
            "output_bias": (1, 1, 1, 1),
        },
    ),
    "size, alpha 1/2": Golden(
        SIZE,
        0.5,
        0.5,
        1.0,
        1.0,
        {
            "input_embedding": (1, 1, 0.25, 1),
            "input_bias": (1, 1, 0.25, 1),
            "tied_embedding": (1, 1, 0.25, 1),
            "hidden_weight": (0.5, 0.125, 0.125, 4),
            "hidden_bias": (1, 0.5, 0.125, 1),
            "hidden_norm": (1, 0.5, 0.125, 1),
            "qk_norm": (1, 0.5, 0.5, 1),
            "output_norm": (1, 1, 1, 1),
            "output_weight": (0.25, 0.25, 1, 4),
            "output_bias": (1, 1, 1, 1),
        },
    ),
    "width 2 and depth 9, alpha 1/2": Golden(
        {"width": 2, "depth": 9},
        0.5,
        1 / 3,
        1.0,
        1.0,
        {
            "input_embedding": (1, 1, 1 / 2, 1),
            "input_bias": (1, 1, 1 / 2, 1),
            "tied_embedding": (1, 1, 1 / 2, 1),
            "hidden_weight": (2**-0.5, 1 / 6, 1 / 6, 2),
            "hidden_bias": (1, 1 / 3, 1 / 6, 1),
            "hidden_norm": (1, 1 / 3, 1 / 6, 1),
            "qk_norm": (1, 1 / 3, 1 / 3, 1),
            "output_norm": (1, 1, 1, 1),
            "output_weight": (1 / 2, 1 / 2, 1, 2),
            "output_bias": (1, 1, 1, 1),
        },
    ),
    "all, alpha 1": Golden(
        ALL,
        1.0,
        0.25,
        4.0,
        0.25,
        {
            "input_embedding": (1, 0.5, 0.5, 0.5),
            "input_bias": (1, 0.5, 0.5, 0.5),
            "tied_embedding": (1, 0.5, 0.5, 0.5),
            "hidden_weight": (0.5, 0.125, 0.125, 2),
            "hidden_bias": (1, 0.5, 0.125, 0.5),
            "hidden_norm": (1, 0.5, 0.125, 0.5),
            "qk_norm": (1, 0.5, 0.5, 0.5),
            "output_norm": (1, 0.5, 2, 0.5),
            "output_weight": (0.25, 0.125, 2, 2),
            "output_bias": (1, 0.5, 2, 0.5),
        },
    ),
    "all, alpha 1/2": Golden(
        ALL,
        0.5,
        0.5,
        4.0,
        0.25,
        {
            "input_embedding": (1, 0.5, 0.5, 0.5),
            "input_bias": (1, 0.5, 0.5, 0.5),
            "tied_embedding": (1, 0.5, 0.5, 0.5),
            "hidden_weight": (0.5, 0.0625, 0.25, 2),
            "hidden_bias": (1, 0.25, 0.25, 0.5),
            "hidden_norm": (1, 0.25, 0.25, 0.5),
            "qk_norm": (1, 0.25, 1, 0.5),
            "output_norm": (1, 0.5, 2, 0.5),
            "output_weight": (0.25, 0.125, 2, 2),
            "output_bias": (1, 0.5, 2, 0.5),
        },
    ),
    "batch alone": Golden({"batch": 4}, 1.0, 1.0, 0.25, 4.0, dict.fromkeys(ROLES, (1, 2, 0.5, 2))),
    "batch alone, alpha 1/2": Golden(
        {"batch": 4}, 0.5, 1.0, 0.25, 4.0, dict.fromkeys(ROLES, (1, 2, 0.5, 2))
    ),
}

ONES = dict.fromkeys(ROLES, (1.0, 1.0, 1.0, 1.0))
# At ALL with alpha 1/2. Neither muP nor CompleteP says anything of batch size and duration.
OTHERS = {
    "sp": ONES
    | dict.fromkeys(("hidden_weight", "output_weight", "tied_embedding"), (0.5, 1, 1, 1)),
    "mup": ONES
    | {
        "input_embedding": (1, 1, 0.25, 1),
        "input_bias": (1, 1, 0.25, 1),
        "tied_embedding": (1, 1, 0.25, 1),
        "hidden_weight": (0.5, 0.25, 0.25, 4),
        "hidden_bias": (1, 1, 0.25, 1),
        "hidden_norm": (1, 1, 0.25, 1),
        "qk_norm": (1, 1, 0.25, 1),
        "output_weight": (0.25, 0.25, 1, 4),
    },
    "completep": ONES
    | {
        "hidden_weight": (0.5, 0.125, 0.125, 4),
        "hidden_bias": (1, 0.5, 0.125, 1),
        "hidden_norm": (1, 0.5, 0.125, 1),
        "qk_norm": (1, 0.5, 0.125, 1),
        "output_weight": (1, 1, 1, 4),
    },
}
RESIDUAL = {"sp": 1.0, "mup": 1.0, "completep": 0.5}

HIDDEN = ("hidden_weight", "hidden_bias", "hidden_norm")
INPUTS = ("input_embedding", "input_bias", "tied_embedding")
# Where two parameterisations' cells of width and depth differ, with alpha between 1/2 and 1.
DIFFERENCES = {
    ("completep", "completedp"): {
        ("output_weight", "init_std"),
        ("output_weight", "lr"),
        ("output_weight", "multiplier"),
        ("input_embedding", "eps"),
        ("input_bias", "eps"),
        ("tied_embedding", "eps"),
        ("qk_norm", "eps"),
    },
    ("mup", "completedp"): {
        *((role, "lr") for role in (*HIDDEN, "qk_norm")),
        *((role, "eps") for role in (*HIDDEN, "qk_norm")),
    },
    ("sp", "mup"): {
        ("output_weight", "init_std"),
        ("hidden_weight", "lr"),
        ("output_weight", "lr"),
        *((role, "eps") for role in (*HIDDEN, *INPUTS, "qk_norm")),
        ("tied_embedding", "init_std"),
        ("tied_embedding", "multiplier"),
        ("hidden_weight", "weight_decay"),
        ("output_weight", "weight_decay"),
    },
}

ratio = st.floats(1 / 64, 64)
ratios = st.builds(Ratios, width=ratio, depth=ratio, batch=ratio, tokens=ratio)
alphas = st.floats(0.5, 1)
horizons = st.floats(0, 1)
any_rules = st.builds(
    Rules,
    parameterisation=st.sampled_from(PARAMETERISATIONS),
    alpha=alphas,
    axes=st.lists(st.sampled_from(AXES), unique=True).map(tuple),
    token_exponent=horizons,
    output_norm_eps=st.sampled_from(("printed", "gradient")),
    weight_decay=st.sampled_from(("torch", "independent")),
)


def table(rules: Rules, at: Ratios) -> dict[tuple[str, str], float]:
    """Every factor of every role, and the residual multiplier."""
    found = {
        (role, name): getattr(rules.factors(role, at), name)
        for role in ROLES
        for name in HYPERPARAMETERS
    }
    return found | {("residual", "multiplier"): rules.residual_multiplier(at)}


def equal(a: dict[Any, float], b: dict[Any, float]) -> bool:
    return a == pytest.approx(b, rel=1e-9)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", GOLDEN)
def test_factors_of_every_role_are_the_papers(case: str, role: str) -> None:
    """Complete(d)P's factors are those of Table 1, worked out by hand."""
    golden = GOLDEN[case]
    found = cdp.factors(role, Ratios(**golden.ratios), alpha=golden.alpha)
    four = (found.init_std, found.lr, found.eps, found.weight_decay)
    assert four == pytest.approx(golden.roles[role])
    assert found.one_minus_beta == pytest.approx(golden.one_minus_beta)
    width = golden.ratios.get("width", 1)
    assert found.multiplier == (1 / width if role == "tied_embedding" else 1.0)


@pytest.mark.parametrize("case", GOLDEN)
def test_residual_multiplier_and_steps_are_the_papers(case: str) -> None:
    """Residual branches are multiplied by m_L^-alpha, and steps grow by m_D / m_B."""
    golden = GOLDEN[case]
    at = Ratios(**golden.ratios)
    assert Rules(alpha=golden.alpha).residual_multiplier(at) == pytest.approx(golden.residual)
    assert at.steps == golden.steps


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("parameterisation", OTHERS)
def test_factors_of_other_parameterisations(parameterisation: str, role: str) -> None:
    """Sp, muP and CompleteP have the table's own columns, and no rule for batch and tokens."""
    found = cdp.factors(role, Ratios(**ALL), parameterisation=parameterisation, alpha=0.5)
    four = (found.init_std, found.lr, found.eps, found.weight_decay)
    assert four == pytest.approx(OTHERS[parameterisation][role])
    assert found.one_minus_beta == 1.0
    has_factor = {"tied_embedding": OTHERS.keys() - {"sp"}, "output_weight": {"completep"}}
    forward = 0.25 if parameterisation in has_factor.get(role, ()) else 1.0
    assert found.multiplier == forward


@pytest.mark.parametrize("parameterisation", OTHERS)
def test_residual_multiplier_of_other_parameterisations(parameterisation: str) -> None:
    """Only CompleteP scales residual branches, as Complete(d)P does."""
    rules = Rules(parameterisation=parameterisation, alpha=0.5)
    assert rules.residual_multiplier(Ratios(**ALL)) == RESIDUAL[parameterisation]


@pytest.mark.parametrize(("one", "other"), DIFFERENCES)
def test_parameterisations_differ_where_the_table_says(one: str, other: str) -> None:
    """In width and depth, two parameterisations differ in the table's cells and nowhere else."""
    at = Ratios(width=3, depth=5)
    first, second = (table(Rules(parameterisation=name, alpha=0.75), at) for name in (one, other))
    differing = {cell for cell in first if first[cell] != pytest.approx(second[cell])}
    differing.discard(("residual", "multiplier"))
    assert differing == DIFFERENCES[one, other]


@given(rules=any_rules)
def test_ratio_one_is_the_identity(rules: Rules) -> None:
    """Every parameterisation leaves the base model exactly as it is."""
    assert set(table(rules, Ratios()).values()) == {1.0}
    assert rules.scale_beta("beta1", 0.9, 1.0) == 0.9


@given(rules=any_rules, first=ratios, second=ratios)
def test_factors_compose(rules: Rules, first: Ratios, second: Ratios) -> None:
    """Going from a to b and from b to c multiplies by what going from a to c does."""
    one, two, both = (table(rules, at) for at in (first, second, first * second))
    assert equal({cell: one[cell] * two[cell] for cell in one}, both)


@given(rules=any_rules, at=ratios)
def test_axes_are_independent_of_their_order(rules: Rules, at: Ratios) -> None:
    """Scaling one axis after another, in any order, is scaling all at once."""
    steps = [Ratios(**{axis: getattr(at, axis)}) for axis in AXES]
    whole = table(rules, at)
    for order in itertools.islice(itertools.permutations(steps), 0, None, 7):
        together = dict.fromkeys(whole, 1.0)
        for step in order:
            factor = table(rules, step)
            together = {cell: together[cell] * factor[cell] for cell in together}
        assert equal(together, whole)


@given(alpha=alphas, h=horizons, at=ratios)
def test_lr_times_decay_times_steps_ignores_batch_and_tokens(
    alpha: float, h: float, at: Ratios
) -> None:
    """For any role and horizon exponent the total decay depends on width and depth alone."""
    rules = Rules(alpha=alpha, token_exponent=h)
    size = Ratios(width=at.width, depth=at.depth)
    for role in ROLES:
        here, still = rules.factors(role, at), rules.factors(role, size)
        total = here.lr * here.weight_decay * at.steps
        assert total == pytest.approx(still.lr * still.weight_decay)


@given(alpha=alphas, at=ratios, k=st.floats(1 / 16, 16))
def test_batch_and_tokens_together_change_only_steps(alpha: float, at: Ratios, k: float) -> None:
    """Batch x k with tokens x k keeps every factor and the number of steps' ratio."""
    rules = Rules(alpha=alpha)
    more = at * Ratios(batch=k, tokens=k)
    assert equal(table(rules, at), table(rules, more))
    assert more.steps == pytest.approx(at.steps)


@pytest.mark.parametrize("alpha", [0.0, 0.49, 1.01, 2, -1, float("nan"), "1", True, None])
def test_alpha_outside_its_range_is_an_error(alpha: Any) -> None:
    """Alpha is a number from 1/2 to 1, and the error quotes what was given."""
    message = error_of(cdp.factors, "hidden_weight", Ratios(), alpha=alpha)
    assert repr(alpha) in message
    assert "alpha" in message


@pytest.mark.parametrize(
    ("choice", "value"),
    [
        ("parameterisation", "mUP"),
        ("output_norm_eps", "x1"),
        ("beta_rule", "sqrt"),
        ("weight_decay", 0.1),
        ("axes", ("width", "heads")),
        ("token_exponent", -0.1),
        ("token_exponent", 1.5),
        ("token_exponent", float("nan")),
    ],
)
def test_bad_choices_are_errors(choice: str, value: Any) -> None:
    """An impossible choice is one line that quotes it."""
    message = error_of(Rules, **{choice: value})
    assert repr(value[-1] if isinstance(value, tuple) else value) in message


@pytest.mark.parametrize("role", ["weights", "Hidden_weight", None, "residual"])
def test_unknown_role_is_an_error(role: Any) -> None:
    """A role that does not exist is one line that quotes it and lists those that do."""
    message = error_of(cdp.factors, role, Ratios())
    assert repr(role) in message
    assert "output_weight" in message


def test_unknown_hyperparameter_is_an_error() -> None:
    """Asking for a hyperparameter the table does not have lists those it has."""
    assert "one_minus_beta" in error_of(Rules().exponents, "hidden_weight", "momentum")


@pytest.mark.parametrize("parameterisation", ["mup", "completep", "completedp"])
def test_output_norm_eps_by_gradient(parameterisation: str) -> None:
    """`output_norm_eps="gradient"` adds m_N^-1 to that one cell and changes no other."""
    at = Ratios(width=4, depth=9)
    printed = table(Rules(parameterisation=parameterisation), at)
    by_gradient = table(Rules(parameterisation=parameterisation, output_norm_eps="gradient"), at)
    assert printed["output_norm", "eps"] == 1.0
    assert by_gradient == printed | {("output_norm", "eps"): 0.25}


def test_output_norm_eps_by_gradient_keeps_batch_and_tokens() -> None:
    """The switch is about width: the factor sqrt(m_D / m_B) stays."""
    found = cdp.factors("output_norm", Ratios(**ALL), output_norm_eps="gradient")
    assert found.eps == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rule", "beta", "r", "expected"),
    [
        ("linear", 0.9, 0.25, 0.975),
        ("linear", 0.95, 0.25, 0.9875),
        ("linear", 0.9, 4, 0.6),
        ("linear", 0.95, 4, 0.8),
        ("linear", 0.9, 9.9, 0.01),
        ("linear", 0.0, 0.25, 0.75),
        ("linear", 0.0, 1.0, 0.0),
        ("power", 0.9, 4, 0.6561),
        ("power", 0.9, 10, 0.3486784401),
        ("power", 0.95, 0.25, 0.9872585450),
        ("power", 0.0, 4, 0.0),
    ],
)
def test_betas(rule: str, beta: float, r: float, expected: float) -> None:
    """`linear` multiplies 1 - beta by r as the paper does; `power` raises beta to r."""
    assert Rules(beta_rule=rule).scale_beta("beta1", beta, r) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("beta", "r", "largest"), [(0.9, 10, "10"), (0.9, 64, "10"), (0.95, 20, "20")]
)
def test_beta_that_leaves_its_range_names_the_largest_r(
    beta: float, r: float, largest: str
) -> None:
    """The paper's rule takes beta1 = 0.9 to 0 at r = 10: an error that says how far it can go."""
    message = error_of(Rules().scale_beta, "beta1", beta, r)
    assert "beta1" in message
    assert f"{beta:g}" in message
    assert f"under {largest};" in message
    assert 'beta_rule="keep"' in message


@given(batch=st.floats(1 / 64, 64), tokens=st.floats(1 / 64, 64), width=st.floats(1, 16))
def test_kept_betas_change_nothing_else(batch: float, tokens: float, width: float) -> None:
    """`beta_rule="keep"` leaves betas and Muon's momentum at the base's, all else by the rules."""
    ratios = Ratios(width=width, batch=batch, tokens=tokens)
    optimizer = {"hidden_weight": "muon"}
    kept, ruled = Rules(beta_rule="keep", optimizer=optimizer), Rules(optimizer=optimizer)
    assert kept.memory_factor(ratios) == 1.0
    for role in Role:
        mine, theirs = (rules.factors(role, ratios).to_dict() for rules in (kept, ruled))
        memories = [name for name in mine if name.startswith("one_minus_")]
        assert [mine.pop(name) for name in memories] == [1.0]
        assert mine == {name: theirs[name] for name in mine}


def test_beta_zero_cannot_grow() -> None:
    """A base without momentum can keep it at r <= 1 and has nowhere to go above."""
    assert "beta1" in error_of(Rules().scale_beta, "beta1", 0.0, 1.001)


@given(beta=st.floats(0.01, 0.9999), r=st.floats(1 / 256, 256))
def test_power_rule_never_leaves_its_range(beta: float, r: float) -> None:
    """`beta_rule="power"` keeps beta in [0, 1) at any r."""
    assert 0 <= Rules(beta_rule="power").scale_beta("beta1", beta, r) < 1


@given(beta=st.floats(0.5, 0.99), r=st.floats(0.999, 1.001))
def test_beta_rules_agree_to_first_order(beta: float, r: float) -> None:
    """Near r = 1, where beta^r is 1 - (1 - beta) r + ..., both rules move beta the same way."""
    linear = Rules().scale_beta("beta1", beta, r)
    powered = Rules(beta_rule="power").scale_beta("beta1", beta, r)
    assert (linear - beta) * (powered - beta) >= 0
    assert linear == pytest.approx(powered, abs=1e-3 * (1 - beta))


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("hidden_weight", 0.25),
        ("output_weight", 0.25),
        ("input_embedding", 0.25),
        ("qk_norm", 0.25),
    ],
)
def test_independent_weight_decay(role: str, expected: float) -> None:
    """A decay that lr does not multiply scales by r with batch and tokens, and not with width."""
    found = cdp.factors(role, Ratios(**ALL), weight_decay="independent")
    assert found.weight_decay == pytest.approx(expected)


@given(rules=any_rules, at=ratios)
def test_independent_weight_decay_is_lr_times_decay(rules: Rules, at: Ratios) -> None:
    """The independent factor is the lr's times torch's, for every role and parameterisation."""
    torch_like = Rules(**(vars(rules) | {"weight_decay": "torch"}))
    independent = Rules(**(vars(rules) | {"weight_decay": "independent"}))
    for role in ROLES:
        ours, theirs = independent.factors(role, at), torch_like.factors(role, at)
        assert ours.weight_decay == pytest.approx(theirs.lr * theirs.weight_decay)
        assert ours.lr == theirs.lr


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("parameterisation", PARAMETERISATIONS)
def test_switching_an_axis_off(parameterisation: str, axis: str) -> None:
    """Without an axis the rules do what they would do if its ratio were 1."""
    at = Ratios(width=3, depth=5, batch=7, tokens=11)
    rest = tuple(name for name in AXES if name != axis)
    still = Ratios(**(at.to_dict() | {axis: 1.0}))
    off = Rules(parameterisation=parameterisation, alpha=0.5, axes=rest)
    on = Rules(parameterisation=parameterisation, alpha=0.5)
    assert equal(table(off, at), table(on, still))


@pytest.mark.parametrize(
    ("h", "lr", "eps", "weight_decay", "one_minus_beta"),
    [
        (0.0, 1, 1, 1 / 16, 1),
        (0.25, 1 / 2, 2, 1 / 8, 1 / 4),
        (0.5, 1 / 4, 4, 1 / 4, 1 / 16),
        (1.0, 1 / 16, 16, 1, 1 / 256),
    ],
)
def test_token_exponent(
    h: float, lr: float, eps: float, weight_decay: float, one_minus_beta: float
) -> None:
    """The learning rate falls as m_D^-h, and eps, decay and memory follow it."""
    found = cdp.factors("output_bias", Ratios(tokens=16), token_exponent=h)
    expected = (lr, eps, weight_decay, one_minus_beta)
    assert (found.lr, found.eps, found.weight_decay, found.one_minus_beta) == pytest.approx(
        expected
    )


@given(at=ratios, h=horizons)
def test_token_exponent_changes_nothing_but_tokens(at: Ratios, h: float) -> None:
    """With tokens as at base the horizon exponent has no effect."""
    at = Ratios(**(at.to_dict() | {"tokens": 1.0}))
    assert equal(table(Rules(token_exponent=h), at), table(Rules(), at))


@pytest.mark.parametrize(
    ("role", "hyperparameter", "axis"),
    [
        ("hidden_weight", "lr", "width"),
        ("output_norm", "eps", "tokens"),
        ("qk_norm", "weight_decay", "batch"),
        ("residual", "multiplier", "depth"),
    ],
)
def test_shift_changes_one_exponent(role: str, hyperparameter: str, axis: str) -> None:
    """A shift multiplies one factor by its ratio to the shift, and no other factor."""
    at = Ratios(width=3, depth=5, batch=7, tokens=11)
    shift = Shift(role=role, hyperparameter=hyperparameter, axis=axis, by=0.5)
    plain, shifted = table(Rules(), at), table(Rules(shifts=(shift,)), at)
    changed = plain[role, hyperparameter] * getattr(at, axis) ** 0.5
    assert equal(shifted, plain | {(role, hyperparameter): changed})


def test_shifts_add_up_and_obey_switched_off_axes() -> None:
    """Two shifts of one cell add, and a shift along an axis that is off does nothing."""
    shift = Shift(role="hidden_weight", hyperparameter="lr", axis="width", by=0.5)
    both = Rules(shifts=(shift, shift)).exponents("hidden_weight", "lr")
    assert both["width"] == pytest.approx(0.0)
    off = Rules(shifts=(shift,), axes=("depth", "batch", "tokens"))
    assert off.exponents("hidden_weight", "lr")["width"] == 0.0
    one: Any = shift
    assert Rules(shifts=one) == Rules(shifts=[one]) == Rules(shifts=(shift,))


@pytest.mark.parametrize(
    "change",
    [
        {"role": "weights"},
        {"hyperparameter": "beta1"},
        {"axis": "heads"},
        {"by": float("nan")},
        {"by": "1"},
    ],
)
def test_bad_shift_is_an_error(change: dict[str, Any]) -> None:
    """A shift of something that is not in the table, or by no number, is one line quoting it."""
    good = {"role": "hidden_weight", "hyperparameter": "lr", "axis": "width", "by": 1.0}
    assert repr(next(iter(change.values()))) in error_of(Shift, **(good | change))


def test_factors_as_plain_numbers() -> None:
    """`to_dict` holds every hyperparameter's factor under its name."""
    found = cdp.factors("hidden_weight", Ratios(**ALL))
    assert found.to_dict() == {name: getattr(found, name) for name in HYPERPARAMETERS}
    assert isinstance(found, cdp.Factors)


def test_error_is_a_value_error() -> None:
    """Code that knows nothing of this package can catch its errors as ValueError."""
    assert issubclass(CompletedpError, ValueError)
