"""The command line: results as JSON, errors as one line, nothing half-written."""

import json
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from completedp import __version__
from completedp.cli.main import _parse, _said_once, main
from completedp.cli.shared import VERBS, Verb, as_config
from completedp.cli.values import parse_count
from completedp.lm.transformer import ModelConfig, Transformer
from completedp.theory.recipe import Recipe
from completedp.theory.roles import Role
from completedp.theory.rules import Rules
from completedp.theory.scale import Ratios, Scale

ROOT = Path(__file__).parent.parent


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`completedp ARGUMENTS` in a process of its own."""
    command = [sys.executable, "-m", "completedp", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def error_line(*arguments: str, cwd: Path | None = None) -> str:
    """The one line of a command that must fail with exit code 2 and no traceback."""
    result = run(*arguments, cwd=cwd)
    return one_error_line(result.returncode, result.stdout, result.stderr)


def one_error_line(code: Any, out: str, error: str) -> str:
    """The line, if it is one and the exit code is 2."""
    assert code == 2, out + error
    lines = error.strip().splitlines()
    assert len(lines) == 1, error
    assert lines[0].startswith("completedp: error: ")
    return lines[0]


PLAN = ("plan", "--recipe", "adamw-reference")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cli")
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"document {i} " * 40)
    out = str(folder / "tokens")
    result = run("data", str(folder), "--out", out, "--valid-fraction", "0.1", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["vocab"] == 257
    return out


def test_rules_json_is_the_contract() -> None:
    """`rules --json` prints the golden values under the names outside checks rely on."""
    ratios = "width=4,depth=4,batch=4,tokens=16"
    result = run("rules", "--ratios", ratios, "--alpha", "1", "--json")
    found = json.loads(result.stdout)
    assert found["ratios"] == {"width": 4, "depth": 4, "batch": 4, "tokens": 16}
    assert found["residual_multiplier"] == pytest.approx(0.25)
    assert found["steps"] == pytest.approx(4)
    hidden = found["roles"]["hidden_weight"]
    expected = {"init_std": 0.5, "lr": 0.125, "eps": 0.125, "weight_decay": 2}
    assert {k: hidden[k] for k in expected} == pytest.approx(expected)
    assert hidden["one_minus_beta"] == pytest.approx(0.25)
    assert set(found["roles"]) == {str(role) for role in Role}


def test_the_rules_of_a_recipe_are_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rules --recipe` prints the factors of the recipe's rules, and takes no others."""
    code, out, error = said(
        "rules --recipe default --ratios batch=4,tokens=16 --json", monkeypatch, capsys
    )
    assert code == 0, error
    rules, ratios = Recipe.default().rules, Ratios(batch=4, tokens=16)
    roles = json.loads(out)["roles"]
    assert roles == {str(role): rules.factors(role, ratios).to_dict() for role in Role}
    assert roles != {str(role): Rules().factors(role, ratios).to_dict() for role in Role}
    shown = said("rules --recipe default", monkeypatch, capsys)[1]
    assert shown.startswith("completedp, alpha 1, token_exponent 0.25, beta_rule keep: width x1")
    for flag in ("--alpha 0.5", "--beta-rule linear", "--decay-rule=torch"):
        both = said(f"rules --recipe default {flag}", monkeypatch, capsys)
        assert "--recipe default has rules of its own: leave it out" in one_error_line(*both)


def test_rules_page_is_the_table() -> None:
    """docs/rules.md is what `rules --markdown` prints: mend it with `make docs`."""
    assert (ROOT / "docs" / "rules.md").read_text() == run("rules", "--markdown").stdout


WITH_PARTS = {
    "bench": (("slots",), ("optimizer",)),
    "recipe": (("show",), ("compare",), ("list",)),
    "search": (("start",), ("worker",), ("ray",), ("status",), ("release",), ("best",)),
}


@pytest.mark.parametrize(
    "words", [(verb, *part) for verb in VERBS for part in WITH_PARTS.get(verb, ((),))]
)
def test_every_verb_has_help_and_json(words: tuple[str, ...]) -> None:
    """Each verb, and each part of one, explains itself in what may be typed, and prints JSON."""
    result = run(*words, "--help")
    assert result.returncode == 0
    assert "--json" in result.stdout
    assert "{None}" not in result.stdout


@pytest.mark.parametrize(
    "words", [(verb, *part) for verb in VERBS for part in WITH_PARTS.get(verb, ((),))]
)
def test_help_fills_its_box(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line of help ends where the next word has no room, and not where the source's line does."""
    monkeypatch.setenv("COLUMNS", "80")
    box = said(f"{' '.join(words)} --help", monkeypatch, capsys)[1].splitlines()
    for line, following in pairwise(each.strip("│") for each in box):
        is_flag_alone = line.strip().startswith("--") and "  " not in line.strip()
        if line.strip() and not is_flag_alone and re.match(r" {8,}\S", following):
            first = following.split()[0]
            assert len(line.rstrip()) + 1 + len(first) > len(line) - 2, f"{line}\n{following}"


def test_plan_prints_and_explains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan` prints a row per type, JSON for machines, and the factors of one tensor."""
    sizes = "--recipe adamw-reference --width 1024 --depth 16 --batch 131072 --tokens 1e9"
    assert "blocks.0-15.attn.qkv.weight" in said(f"plan {sizes}", monkeypatch, capsys)[1]
    found = json.loads(said(f"plan {sizes} --json", monkeypatch, capsys)[1])
    assert found["ratios"] == {"width": 4, "depth": 4, "batch": 8, "tokens": 62.5}
    explain = f"plan {sizes} --explain blocks.3.mlp.down.weight"
    explained = said(explain, monkeypatch, capsys)[1]
    assert "lr = 0.00390625 (value) x 0.25 (width 4^-1)" in explained
    (line,) = said(f"{explain} lr", monkeypatch, capsys)[1].splitlines()
    assert line in explained.replace("  lr = ", "blocks.3.mlp.down.weight: lr = ")
    rows = said(f"plan {sizes} --explain blocks.0-2,15.attn.{{qkv,out}} lr", monkeypatch, capsys)[1]
    assert [line.split(":")[0] for line in rows.splitlines() if line.startswith("blocks.")] == [
        f"blocks.{block}.attn.{name}.weight" for block in (0, 1, 2, 15) for name in ("qkv", "out")
    ]


@pytest.mark.parametrize(
    ("words", "said_of_it"),
    [("qkv nothing", "nothing"), ("a b c", "--explain a b c"), ("blocks.7-9.attn", "no tensor")],
)
def test_what_cannot_be_explained_is_said_first(
    words: str,
    said_of_it: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An unknown name or value is one line, and no cautions of a plan that is not shown."""
    words = words.replace("qkv", "blocks.0.attn.qkv")
    code, _, error = said(f"plan --width 16x --explain {words}", monkeypatch, capsys)
    assert code == 2
    assert len(error.splitlines()) == 1
    assert said_of_it in error


def test_an_explanation_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan --explain` says the same words and numbers in 80 columns as in many, in more lines."""
    words = "plan --recipe adamw-reference --width 4x --tokens 16x --explain blocks.0"
    texts = []
    for columns in ("1000", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        texts.append(said(words, monkeypatch, capsys)[1])
    wide, narrow = texts
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert narrow.split() == wide.split()


def test_plan_takes_factors_of_the_base(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`4x` is four times the recipe's base, exactly the plan of the number itself."""
    plan = "plan --recipe adamw-reference --json"
    numbers = "--width 512 --depth 2 --batch 65536 --tokens 64M"
    factors = "--width 2x --depth 0.5x --batch 4x --tokens 4.0X"
    code, found, error = said(f"{plan} {factors}", monkeypatch, capsys)
    assert code == 0, error
    assert found == said(f"{plan} {numbers}", monkeypatch, capsys)[1]


def test_train_keeps_numbers_of_factors(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run's folder has the sizes themselves, so that a number goes on where a factor began."""
    base = Scale(width=64, depth=2, batch=32, tokens=640)
    model = Transformer(ModelConfig(vocab=257, width=64, depth=2))
    Recipe.for_model(model, base, beta_rule="power").save(tmp_path / "r.json")
    command = f"train --data {tokens} --out {tmp_path}/run --recipe {tmp_path}/r.json --context 32 "
    command += "--eval-sequences 4 --depth"
    code, _, error = said(f"{command} 0.5x --tokens 2x --stop-after 3", monkeypatch, capsys)
    assert code == 0, error
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [config[axis] for axis in ("width", "depth", "tokens")] == [None, 1, 1280]
    code, out, error = said(f"{command} 1 --tokens 1280", monkeypatch, capsys)
    assert (code, "(resumed at step 3)" in out) == (0, True), error


def test_train_and_resume(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train` writes a result, and the same command finds it."""
    command = f"train --data {tokens} --out {tmp_path}/run --width 64 --depth 1 --batch 32 "
    command += "--tokens 31250 --context 32 --eval-sequences 4 --json"
    first, second = (said(command, monkeypatch, capsys) for _ in range(2))
    assert first[0] == 0, first
    assert json.loads(first[1])["status"] == "ok"
    assert first[1] == second[1]
    assert "cost: 1 trial, 976 steps" in first[2]
    assert "cost:" not in second[2]


def test_a_resumed_run_says_so(
    tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a run says at which step it was resumed, or that it was finished before, or that
    it was stopped there."""
    sizes = "--width 64 --depth 1 --batch 32 --tokens 3200 --context 32 --eval-sequences 4"
    recipe = Recipe.default()
    power = replace(recipe, rules=replace(recipe.rules, beta_rule="power"))
    power.save(tmp_path / "power.json")
    command = f"train --data {tokens} --out {tmp_path}/run --recipe {tmp_path}/power.json "
    command += sizes
    code, out, error = said(f"{command} --stop-after 40", monkeypatch, capsys)
    assert (code, "stopped after 40 steps" in out) == (0, True)
    assert "40 steps" in error
    assert "(stopped there before" in said(f"{command} --stop-after 40", monkeypatch, capsys)[1]
    code, out, error = said(command, monkeypatch, capsys)
    assert (code, "(resumed at step 40)" in out) == (0, True)
    assert "60 steps" in error
    assert f"next: completedp report {tmp_path}/run" in error
    assert "(finished before" in said(command, monkeypatch, capsys)[1]


@pytest.mark.slow
def test_bench_slots() -> None:
    """`bench slots` times every way and gives the ratios."""
    sizes = ("--width", "16", "--head-dim", "8", "--sequences", "2", "--context", "8")
    result = run("bench", "slots", *sizes, "--slots", "2", "--steps", "1", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["way"] for row in found["rows"]][:2] == ["eager", "compile"]
    assert found["slots_over_eager"] > 0


@pytest.mark.parametrize(("verb", "again"), [("quickstart", True), ("doctor", False)])
def test_an_interrupted_verb_says_whether_it_resumes(
    verb: str, again: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After Ctrl-C, those whose command goes on where it stopped say so; the exit code is 130."""

    def interrupted(_: Verb) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(VERBS[verb], "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["completedp", verb])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit, match="130"):
        main()
    assert ("goes on where it stopped" in capsys.readouterr().err) == again


def test_those_that_resume() -> None:
    """Each verb says it of itself."""
    resuming = {name for name, verb in VERBS.items() if verb.resumes}
    assert resuming == {"quickstart", "train", "search", "sweep", "fit-horizon", "figure"}


def test_the_rules_choices_are_flags() -> None:
    """Every choice of Rules but the shifts of ablations is a flag, spelt as it always was."""
    given = "--parameterisation mup --alpha 0.5 --axes width,depth --token-exponent 0.3"
    given += " --output-norm-eps gradient --beta-rule power --decay-rule independent"
    found: Any = _parse(["rules", *given.split()])
    rules = Rules(
        parameterisation="mup",
        alpha=0.5,
        axes=("width", "depth"),
        token_exponent=0.3,
        output_norm_eps="gradient",
        beta_rule="power",
        weight_decay="independent",
    )
    assert as_config(found, Rules) == rules


@pytest.mark.slow
def test_doctor() -> None:
    """`doctor` says what is there."""
    found = json.loads(run("doctor", "--json").stdout)
    assert {"completedp", "python", "torch", "sqlalchemy", "extra ray"} <= found.keys()


def test_doctor_looks_for_modules_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra whose package and module have two names is found where it is installed."""
    from completedp.bench import doctor

    monkeypatch.setattr(doctor, "_compiles", lambda: "works")
    monkeypatch.setattr(doctor, "find_spec", lambda name: name == "sklearn" or None)
    found = doctor.examine()
    assert "missing" not in found["extra gp"]
    assert "missing" in found["extra ray"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rules", "--alpha", "0.3"), "alpha = 0.3"),
        (("rules", "--ratios", "width=4,depht=2"), "'depht=2'"),
        (("rules", "--ratios", "width=0"), "width = 0.0"),
        (("rules", "--axes", "width,time"), "'time'"),
        (("rules", "--parameterisation", "up"), "'up'"),
        (("frobnicate",), "frobnicate"),
        (("train", "--dta", "x"), "--data"),
        (("plan", "--width", "12y"), "'12y'"),
        (("plan", "--width", "yx"), "'yx' is not a factor"),
        ((*PLAN, "--batch", "0.3x"), "batch = 0.3x of the base's 16,384 is 4,915.2"),
        (("plan", "--tokens", "1e400000000x"), "tokens = 1e400000000x"),
        (("search", "start", "--data", "x", "--width", "4x"), "'4x' is not a whole number"),
        (("plan", "--width", "100"), "width 100 is not divisible by head_dim 64"),
        (("plan", "--recipe", "nowhere.json"), "'nowhere.json'"),
        (("plan", "--head-dim", "32"), "`default`) of a base with heads of 32: search one"),
        ((*PLAN, "--tokens", "100"), "tokens = 100 is fewer than one batch of 16384"),
        ((*PLAN, "--batch", "1e6", "--tokens", "2e6"), "the largest r it can take"),
        (("plan", "--explain", "nobody.weight"), "'nobody.weight'"),
        (("plan", "--width", "0"), "width = 0"),
        (("plan", "--tokens", "0"), "tokens = 0"),
        (("plan", "--depth", "1e6"), "depth = 1000000 must be at most 10,000 blocks"),
        (("plan", "--vocab", "1e30"), "vocab"),
        (("plan", "--mlp-ratio", "nan"), "mlp_ratio = nan"),
        (("plan", "--head-dim", "0"), "head_dim = 0"),
        (("rules", "--ratios", "width=1e-320"), "1e-320"),
        (("train", "--data", "x", "--out", ""), "out is empty"),
        (("train", "--data", "x", "--out", "y", "--clip", "nan"), "clip = nan"),
        (("train", "--data", "x", "--out", "y", "--stop-after", "0"), "stop_after = 0"),
        (("coordcheck", "--parameterisation"), "parameterisations = []"),
        (("coordcheck", "--tolerance", "nan"), "tolerance = nan"),
        (("data", "stdlib", "--out", "o", "--tokenizer", "bpe", "--vocab", "1e9"), "too large"),
        (("data", "stdlib", "--out", "o", "--vocab", "32000"), "--tokenizer bpe with it"),
        (("sweep", "--data", "x", "--out", "y"), "'x'"),
        (("sweep", "--data", "x", "--out", "y", "--z-loss", "nan"), "z_loss = nan"),
        (("figure", "lr-widht"), "'lr-widht'"),
        (("train", "--data", "x", "--out", "y", "--mlp", "nope"), "error: unknown mlp 'nope'"),
        (("figure",), "which figure?"),
        (("figure", "lr-width", "--data", "x", "--out", "y"), "'x'"),
        (("figure", "lr-width", "--size", "gpu", "--anyway"), "--data"),
        (("figure", "lr-width", "--size", "gpu", "--device", "cpu"), "--size gpu is for a GPU"),
        (("bench", "slots", "--chunk", "-1"), "chunk = -1"),
        (("bench", "optimizer", "--shapes", "alps"), "'alps'"),
        (("bench", "slots", "--width", "65"), "width 65 is not divisible"),
        (("data", "nowhere.txt", "--out", "out"), "'nowhere.txt'"),
        (("data", "stdlib", "--out", "out", "--tokenizer", "nowhere.json"), "'nowhere.json'"),
        (("train", "--data", "nowhere", "--out", "out"), "'nowhere'"),
        (("coordcheck", "--widths", "64"), "at least two widths"),
        (("coordcheck", "--widths", "128", "64"), "widths = [128, 64]"),
        (("coordcheck", "--widths", "60", "120"), "not divisible by head_dim"),
        (("gradcheck", "--batch", "100"), "batch of 100 tokens"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistake is one line that quotes it, exit code 2, and nothing is written."""
    if arguments == ("coordcheck", "--widths", "64"):
        arguments += ("--depths", "2")
    monkeypatch.chdir(tmp_path)  # in this process: importing torch again takes seconds
    monkeypatch.setattr(sys, "argv", ["completedp", *arguments])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main sets its own
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as stop:
            main()
    assert words in one_error_line(stop.value.code, *capsys.readouterr())
    assert list(tmp_path.iterdir()) == []


def test_a_process_says_the_same(tmp_path: Path) -> None:
    """What the command prints and returns is what its function does."""
    assert "depth = 1000000" in error_line("plan", "--depth", "1e6", cwd=tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02binary\x00", "binary"),
        (b"\xff\xfe bad utf8", "UTF-8"),
        (b"one document only", "is one document"),
    ],
)
def test_bad_text_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    """Text that cannot be tokenised is one line that names the file, and leaves no folder."""
    (tmp_path / "text.txt").write_bytes(content)
    line = error_line("data", "text.txt", "--out", "out", cwd=tmp_path)
    assert words in line or "no text" in line
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_recipe_faults_name_the_key(tmp_path: Path) -> None:
    """A recipe with a mistake is one line that names the key."""
    recipe = json.loads((ROOT / "completedp" / "recipes" / "default.json").read_text())
    recipe["values"]["lr"] = -1.0
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    assert "lr = -1.0" in error_line("plan", "--recipe", "recipe.json", cwd=tmp_path)


def test_output_to_a_file_that_cannot_be(tmp_path: Path) -> None:
    """An output path below a file is one line, not a traceback."""
    (tmp_path / "file").write_text("x")
    error_line("data", "stdlib", "--out", "file/out", cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("65536", 65536),
        ("16_384", 16384),
        ("1e9", 10**9),
        ("16M", 16_000_000),
        ("1.5B", 15 * 10**8),
        ("8.2B", 8_200_000_000),
        ("16.1M", 16_100_000),
        (".5k", 500),
    ],
)
def test_counts_as_people_write_them(text: str, value: int) -> None:
    """Counts may be plain, in powers of ten, or with k, M, B, T."""
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1.5",
        "1e-3",
        "nan",
        "inf",
        "M",
        "0x10",
        "4/2",
        "1e9999",
        ".",
        "1.0005k",
        "1_",
        "1__0",
        "0." + "1" * 5000,
    ],
)
def test_counts_that_are_none(text: str) -> None:
    """What is no whole number is refused."""
    with pytest.raises(ValueError, match="not a whole number"):
        parse_count(text)


def said(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Any, str, str]:
    """Exit code, output and errors of a command, in this process."""
    monkeypatch.setattr(sys, "argv", ["completedp", *words.split()])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code or 0, *capsys.readouterr()


@pytest.mark.parametrize("command", ["plan", "recipe change", "search start", "sweep"])
def test_choices_are_those_there_are(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Help lists what a flag takes, and not that it may be left out."""
    code, out, _ = said(f"{command} --help", monkeypatch, capsys)
    assert code == 0
    assert re.search(r"{\w+,\w+", out)
    assert not re.search(r"{(.*,)?None[,}]", out)


def test_a_list_of_trials_goes_where_it_is_told() -> None:
    """`search export` takes its file by `--out`, as others do, or alone."""
    for words in (["--out", "a.csv"], ["a.csv"]):
        assert cast(Any, _parse(["search", "export", *words])).action.out == "a.csv"


def test_a_recipe_with_other_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`recipe change` writes the recipe with the rules that are given."""
    new = tmp_path / "new.json"
    words = f"recipe change default --parameterisation mup --alpha 0.5 --out {new}"
    assert said(words, monkeypatch, capsys)[0] == 0
    rules = Recipe.load(new).rules
    assert (rules.parameterisation, rules.alpha) == ("mup", 0.5)
    assert rules.token_exponent == Recipe.default().rules.token_exponent


def test_version_and_bare_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--version` says it; a bare command, and one that lacks its part, print help and exit 0."""
    assert said("--version", monkeypatch, capsys)[:2] == (0, f"completedp {__version__}\n")
    assert "--version" in said("--help", monkeypatch, capsys)[1]
    for words in ("", "search", "recipe", "bench"):
        code, out, error = said(words, monkeypatch, capsys)
        assert (code, error) == (0, "")
        assert out.startswith(f"usage: completedp {words}".strip())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("trian --data x", "no command 'completedp trian': did you mean train?"),
        ("search strat", "no command 'completedp search strat': did you mean start?"),
        ("train --widht 3", "completedp train has no '--widht': did you mean --width?"),
        ("search start --data x --trails 3", "has no '--trails': did you mean --trials?"),
        ("coordcheck --parameterisations sp", "did you mean --parameterisation?"),
        ("recipe shwo", "did you mean show?"),
        ("trian --help", "no command 'completedp trian': did you mean train?"),
        ("search strat -h", "no command 'completedp search strat': did you mean start?"),
        ("figure lr-widht", "unknown figure 'lr-widht' (did you mean lr-width?): choose from"),
        ("plan --recipe defualt", "no recipe at 'defualt' (did you mean default?); by name"),
        ("search best --context 3", "has no '--context' (see completedp search best --help)"),
        ("plan --parameterisation mup", "`completedp recipe change` makes one with another"),
        ("search export", "where to? Give --out trials.csv"),
        ("search export a.csv --out b.csv", "where to? Give --out trials.csv"),
        ("plan --export x", "'x' is none of json, hf, torchtitan"),
        ("search start --spcae x", "did you mean --space? (see completedp search start --help)"),
        ("inspect own.py:make", "'own.py:make': give the module, as import does: own:make"),
        ("figure lr-width --peak H10", "'H10' is neither TFLOP/s (989) nor one of A10, A100,"),
        ("coordcheck --widths 64 all", "'all' is not a whole number"),
        ("plan --width 500", "error: width 500 is not divisible by head_dim 64"),
        ("plan --width 500", "the next one is 512"),
        ("plan --explain qkv", "did you mean blocks.0.attn.qkv.weight or"),
        ("plan --explain foo", "'foo': its table lists all, such as embedding.weight, "),
    ],
)
def test_did_you_mean(
    words: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped command, flag or name is one line that names what it is like."""
    assert meant in one_error_line(*said(words, monkeypatch, capsys))


CHECK = "--depths 1 --steps 2 --seeds 1 --context 16 --batch 64 --device cpu"


@pytest.mark.filterwarnings("ignore::UserWarning")  # of so small a base
@pytest.mark.parametrize(
    ("words", "following"),
    [
        (
            "plan --width 4x --vocab 512",
            "completedp train --width 4x --data DATA --out runs/target",
        ),
        ("inspect own_models:nano", "completedp plan --model own_models:nano"),
        (
            f"gradcheck --widths 64 128 {CHECK} --tolerance 9",
            "completedp search start --data DATA --dry-run",
        ),
        (
            f"coordcheck --recipe r.json --widths 16 32 {CHECK} --tolerance 9",
            "completedp plan --recipe r.json",
        ),
        (
            f"coordcheck --widths 64 128 {CHECK} --tolerance 0",
            "docs/checks.md says what rows that fail may mean",
        ),
        (
            f"coordcheck --model own_models:nano --widths 16 32 {CHECK} --tolerance 0",
            "is each tensor taken for what it is? completedp inspect own_models:nano",
        ),
        (
            f"coordcheck --model own_models:shrinking --widths 64 128 {CHECK} --tolerance 9",
            "take the model's factors that move with its size out of its forward pass",
        ),
    ],
)
def test_a_command_names_the_next_one(
    words: str,
    following: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last line for people, on standard error; with `--json` there is none."""
    monkeypatch.chdir(tmp_path)
    base = Scale(width=16, depth=1, batch=64, tokens=6400)
    model = Transformer(ModelConfig(vocab=257, width=16, depth=1, head_dim=16))
    Recipe.for_model(model, base).save("r.json")
    *_, last = said(words, monkeypatch, capsys)[2].strip().splitlines()
    assert last == f"completedp: next: {following}"
    assert "next:" not in said(f"{words} --json", monkeypatch, capsys)[2]


@pytest.mark.parametrize(
    "words",
    [
        "plan --recipe {}",
        "recipe show {}",
        "inspect hf:{}",
        "train --data {} --out x",
        "data {} --out x",
        "data stdlib --out {}",
        "coordcheck --text {}",
        "coordcheck --out {}",
        "search status --store {}",
        "report {}",
        "figure lr-width --out {}",
    ],
)
def test_a_home_that_nobody_has(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever a path is given, one of a user that is not there is a line that quotes it."""
    line = one_error_line(*said(words.format("~nosuchuser/x"), monkeypatch, capsys))
    assert "'~nosuchuser/x': there is no home '~nosuchuser'" in line


def test_what_is_in_the_way_of_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder where a file is to go, a file where a folder is to, and a device, are named."""
    monkeypatch.chdir(tmp_path)
    Recipe.default().save("mine.json")
    for words, line in (
        (f"report mine.json --out {tmp_path}", f"'{tmp_path}' is a folder: name a file in it"),
        ("coordcheck --out mine.json", "'mine.json' is a file: name a folder, there or to be made"),
        ("data /dev/null --out x", "'/dev/null' is neither a file nor a folder: give"),
        ("plan --recipe=", "'' is no path: give the name of a file or a folder"),
    ):
        assert line in one_error_line(*said(words, monkeypatch, capsys))


@pytest.mark.parametrize(
    "words",
    [
        *((verb, *part) for verb in VERBS for part in WITH_PARTS.get(verb, ((),))),
        ("recipe", "change"),
        ("search", "export"),
    ],
)
def test_flags_read_as_what_they_do(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No flag that turns something off is explained by what it would be when on, and none has
    another default than its words say."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = said(" ".join((*words, "--help")), monkeypatch, capsys)
    text = " ".join(out.replace("│", " ").split())
    assert "(default: True)" not in text
    assert "--parameterisations" not in text
    for flag, says in re.findall(r" (--no-[a-z-]+) (\w+ \w+)", text):
        assert re.match("Do not|Leave|Without|Time slots", says), f"{flag}  {says}"
    assert not re.search(r"if not given[^.]*\. \(default: (?!None|[)])", text)


def test_several_sources_of_text(tmp_path: Path) -> None:
    """`data a.txt b.txt` is the text of both, in their order; the same command finds it done."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(f"the text {name} " * 30)
    command = ("data", "a.txt", "b.txt", "c.txt", "--out", "out", "--valid-fraction", "0.3")
    first = run(*command, "--json", cwd=tmp_path)
    manifest = json.loads(first.stdout)
    texts = sum(len((tmp_path / f"{name}.txt").read_text()) for name in ("a", "b", "c"))
    assert sum(split["bytes"] for split in manifest["splits"].values()) == texts
    again = run(*command, cwd=tmp_path)
    assert again.returncode == 0
    assert "next: completedp search start --data out" in again.stderr
    other = run("data", "b.txt", "a.txt", "--out", "out", cwd=tmp_path)
    assert "was prepared with source='a.txt, b.txt, c.txt'" in other.stderr


def test_a_warning_is_said_once_a_command() -> None:
    """What several parts of a command have to say is one line."""
    line = _said_once(set())
    assert line(UserWarning("look")) == "completedp: look\n"
    assert line(UserWarning("look")) == ""
    assert line(UserWarning("elsewhere")) == "completedp: elsewhere\n"


def test_a_model_s_function_may_import_what_is_beside_it(tmp_path: Path) -> None:
    """Also when it is called, long after it was found."""
    (tmp_path / "lazy_net.py").write_text(
        "import torch\n\ndef build(width):\n    return torch.nn.Embedding(8, width)\n"
    )
    (tmp_path / "lazy_model.py").write_text(
        "def make(scale):\n    import lazy_net\n\n    return lazy_net.build(scale.width)\n"
    )
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if p]\n"
        "from completedp.tasks.sources import function_from\n"
        "from types import SimpleNamespace\n"
        "make = function_from('lazy_model:make', 'model')\n"
        "print(make(SimpleNamespace(width=4)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert "Embedding(8, 4)" in done.stdout, done.stderr
