"""Tensors that nobody can classify: shown, and named by overrides made of the model's own names."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from families import Bag, D, V, bare
from helpers import command, error_of, spelt_out
from own_models import NanoGPT
from torch import nn

from completedp.apply.classify import classify, read
from completedp.apply.inspect import inspect_model
from completedp.theory.roles import MODULE_TYPES

OWN = """
from own_models import *
class OwnBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = CausalSelfAttention(width), MLP(width)
    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))
def make(scale):
    model = NanoGPT(scale.width, scale.depth)
    model.h = nn.ModuleList(OwnBlock(scale.width) for _ in range(scale.depth))
    return model
"""


def renamed(depth: int = 2) -> nn.Module:
    """A pre-norm model whose norms' names say nothing."""
    model = NanoGPT(D, depth)
    for block in model.h:
        block.n1, block.n2 = block.ln_1, block.ln_2
        del block.ln_1, block.ln_2
    return model


def strange() -> nn.Module:
    """A model of which hardly anything can be told."""

    def block() -> nn.Module:
        attention = Bag(z=bare(D, D), qn=nn.LayerNorm(8))
        row = nn.Sequential(bare(D, 4 * D), bare(4 * D, D), nn.LayerNorm(D))
        parts = {"b1": nn.Linear(D, 3 * D), "b": bare(D, D), "g": nn.Parameter(torch.ones(D))}
        return Bag(attn=attention, row=row, m=nn.LayerNorm(D), **parts)

    blocks = nn.ModuleList(block() for _ in range(2))
    ends = {"e": nn.LayerNorm(D), "f": nn.LayerNorm(D), "cls": nn.Parameter(torch.zeros(1, 1, D))}
    return Bag(embed=nn.Embedding(V, D), blocks=blocks, **ends, head=bare(D, V), aux=bare(D, 7))


def types_in(model: nn.Module, overrides: dict[str, str]) -> list[str]:
    return [tensor.type for tensor in classify(model, overrides)]


def test_the_guess_of_a_pre_norm_block_is_right() -> None:
    """Overrides as suggested type a model as names that are known do."""
    reading = read(renamed())
    guessed = {s.pattern: s.guess for s in reading.suggestions}
    assert guessed == {"n1": "attn_norm", "n2": "mlp_norm"}
    named = {t.name: t.type for t in classify(NanoGPT(D, 2))}
    for tensor in classify(renamed(), {k: v for k, v in guessed.items() if v}):
        name = tensor.name.replace(".n1.", ".ln_1.").replace(".n2.", ".ln_2.")
        assert tensor.type == named[name]


def test_a_norm_whose_name_is_known_tells_the_other() -> None:
    """Of two norms one of which is known, the other is the other branch's, whatever their order."""
    model = renamed()
    for block in model.h:  # type: ignore[union-attr]
        block.norm2, block.n1 = block.n1, block.n2  # type: ignore[union-attr]
        del block.n2
    reading = read(model)
    assert {s.pattern: s.guess for s in reading.suggestions} == {"n1": "attn_norm"}


def test_norms_of_one_name_are_not_guessed() -> None:
    """Norms that are both the first of a row have no order that a name tells."""

    def block() -> nn.Module:
        rows = {name: nn.Sequential(nn.LayerNorm(D), bare(D, D), bare(D, D)) for name in "ab"}
        return Bag(**rows)

    model = Bag(embed=nn.Embedding(V, D), blocks=nn.ModuleList(block() for _ in range(2)))
    guessed = {s.pattern: s.guess for s in read(model).suggestions}
    assert (guessed[r"a\.0"], guessed[r"b\.0"]) == (None, None)


def test_patterns_match_their_tensors_alone() -> None:
    """Every unknown tensor has one pattern, and no pattern matches another tensor."""
    model = strange()
    reading = read(model)
    unknown = {place.name for place in reading.unknown}
    matched = []
    for suggestion in reading.suggestions:
        names = [n for n, _ in model.named_parameters() if re.search(suggestion.pattern, n)]
        assert set(names) <= unknown
        matched += names
    assert sorted(matched) == sorted(unknown)
    patterns = {s.pattern for s in reading.suggestions}
    assert r"row\.0" in patterns  # layers in a row are different ones
    assert r"\bb\b" in patterns  # for `b` alone is in other names too


def test_only_types_that_fit_are_offered() -> None:
    """A vector is offered gains and biases, a matrix weights, by what it reads and writes; and
    every type that is offered is taken."""
    reading = read(strange())
    offered = {s.pattern: s.types for s in reading.suggestions}
    assert offered[r"row\.0"] == ("qkv", "attn_gate", "router", "mlp_in", "mlp_gate")
    assert offered[r"row\.1"] == ("attn_out", "mlp_out")
    assert offered["z"] == ("qkv", "attn_gate", "attn_out")
    assert offered[r"\bm\b"] == ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm")
    assert "q_norm" in offered["qn"]
    assert not {"attn_norm", "mlp_norm"} & set(offered["qn"])
    assert {"attn_norm", "mlp_out_bias"} <= set(offered[r"\bg\b"])
    assert offered["cls"] == ("embedding", "tied_embedding", "position")
    assert offered["aux"] == ("mlp_in", "unembedding")  # a second head, or a hidden layer
    for pattern, types in offered.items():
        for module_type in types:
            known = {s.pattern: s.types[0] for s in reading.suggestions if s.types}
            known["aux"] = "unembedding"
            assert module_type in types_in(strange(), known | {pattern: module_type})
    sizes = {p.name: len(p.shape) for p in reading.unknown if not p.is_bias}
    for name, dimensions in sizes.items():
        pattern = next(p for p in offered if re.search(p, name))
        assert {MODULE_TYPES[t].is_matrix for t in offered[pattern]} <= {dimensions > 1}


def test_a_layer_in_the_middle_of_a_branch_is_offered_one() -> None:
    """What neither reads nor writes the stream is a hidden layer all the same."""
    model = renamed()
    for block in model.h:
        block.mlp.mid = bare(4 * D, 4 * D)  # type: ignore[union-attr]
    assert {s.pattern: s.guess for s in read(model).suggestions}["mid"] == "mlp_in"
    named = {"n1": "attn_norm", "n2": "mlp_norm", "mid": "mlp_in"}
    found = {t.name: t for t in classify(model, named)}
    assert found["h.0.mlp.mid.weight"].width == 4 * D


def test_patterns_hold_for_deeper_models() -> None:
    """A tensor whose words others have too is named whole, with its block's number left open."""

    def model(depth: int) -> nn.Module:
        made = NanoGPT(D, depth)
        for block in made.h:
            block.attn.g_proj = bare(D, D)  # type: ignore[union-attr]
            block.attn.g_proj_bias = nn.Parameter(torch.ones(4))  # type: ignore[union-attr]
        return made

    (suggestion,) = read(model(2)).suggestions
    assert suggestion.pattern == r"^h\.\d+\.attn\.g_proj_bias$"
    assert types_in(model(4), {suggestion.pattern: "sink_bias"}).count("sink_bias") == 4


def test_a_vector_that_fits_nothing_is_not_guessed() -> None:
    """Outside the blocks a vector is the output's bias only if it is as long as the vocabulary."""
    for length, types in ((3, ()), (V, ("output_bias",))):
        model = strange()
        model.register_parameter("odd", nn.Parameter(torch.ones(length)))
        found = next(s for s in read(model).suggestions if s.pattern == "odd")
        assert found.types == types


def test_without_blocks_all_types_are_offered() -> None:
    """Where no list of blocks was found, a norm may be of one all the same."""
    model = Bag(embed=nn.Embedding(V, D), n1=nn.LayerNorm(D), n2=nn.LayerNorm(D))
    (first, _) = read(model).suggestions
    assert first.types == (
        "attn_norm",
        "attn_post_norm",
        "mlp_norm",
        "mlp_post_norm",
        "output_norm",
    )
    assert first.guess is None


def test_what_there_is_one_of_is_not_guessed_twice() -> None:
    """Two norms outside the blocks are not both taken for the output norm."""
    guessed = {s.pattern: s.guess for s in read(strange()).suggestions}
    assert (guessed[r"\be\b"], guessed["f"]) == (None, None)


def test_inspect_shows_what_it_knows() -> None:
    """The table has every tensor, unknown ones marked, and the flag below, with those given."""
    model = renamed()
    table, _, below = inspect_model(model, {"c_fc": "mlp_in"}).partition("\n\n")
    lines = [row.split() for row in table.splitlines()[2:]]
    rows = {name: row for row in lines for name in spelt_out(row[0])}
    assert sorted(rows) == sorted(name for name, _ in model.named_parameters())
    marked = {name for name, row in rows.items() if row[2:4] == ["?", "?"]}
    assert marked == {name for name in rows if ".n1." in name or ".n2." in name}
    first, *rest = below.splitlines()
    words = shlex.split(first.partition("--override ")[2])
    assert words == ["c_fc=mlp_in", "n1=attn_norm", "n2=mlp_norm"]
    assert "a pattern for a norm covers its bias too" in rest


def test_the_error_in_python_names_the_argument() -> None:
    """One short line: some of the names, and overrides={...} that can be pasted."""
    message = error_of(classify, renamed(6))
    assert "cannot tell the role of 24 tensors: h.0.n1.weight [64], h.0.n1.bias [64]" in message
    given = re.search(r"overrides=(\{.*?\})", message)
    assert given is not None
    assert eval(given[1]) == {"n1": "attn_norm", "n2": "mlp_norm"}  # our own text
    assert len(message) < 300


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with such a model in it, to work in."""
    (tmp_path / "my_gpt.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_gpt", None)


SIZE = ("--width", "64", "--depth", "2")


def test_commands_name_the_flag(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan` says in one short line where to look; `inspect` shows all and fails as `plan` does;
    with the flag that it prints, both work."""
    code, _, error = command(monkeypatch, capsys, "plan", "--model", "my_gpt:make", *SIZE)
    assert (code, error.count("\n")) == (2, 1)
    assert "--override" in error
    assert "completedp inspect my_gpt:make shows all" in error
    assert "overrides=" not in error
    assert len(error) < 300
    code, table, error = command(monkeypatch, capsys, "inspect", "my_gpt:make", *SIZE)
    assert code == 2
    assert "h.0-1.mlp.c_fc.weight" in table
    assert "--override" in error
    flag = next(line for line in table.splitlines() if "--override" in line)
    words = shlex.split(flag.partition(": ")[2])
    code, table, error = command(monkeypatch, capsys, "inspect", "my_gpt:make", *SIZE, *words)
    assert code == 0
    assert error.startswith("completedp: next: completedp plan --model my_gpt:make ")
    assert all(word in error for word in words)
    assert "probed: blocks 1 to 2:" in table


def test_inspect_as_json_has_unknown_tensors_too(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their role and type are null."""
    code, text, _ = command(monkeypatch, capsys, "inspect", "my_gpt:make", *SIZE, "--json")
    rows = {row["name"]: row for row in json.loads(text)}
    assert code == 2
    assert (rows["h.0.n1.bias"]["type"], rows["h.0.n1.bias"]["shape"]) == (None, [64])
    assert rows["h.0.mlp.c_fc.weight"]["type"] == "mlp_in"
