"""The command line: parse, import what the verb needs, call it, print.

Nothing here imports torch before a verb runs, so that `--help` answers at once. An error the user
can mend is one line on standard error and exit code 2; a check that fails exits with 1.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, Suppress, subcommand

from completedp.cli_bench import BenchVerb
from completedp.cli_common import as_config, print_json
from completedp.cli_plan import InspectVerb, PlanVerb
from completedp.cli_search import SearchVerb
from completedp.common.errors import CompletedpError
from completedp.evidence.config import CheckConfig, SweepConfig
from completedp.theory.roles import Role
from completedp.theory.rules import AXES, ParameterisationName, Rules
from completedp.theory.scale import Ratios
from completedp.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class RulesVerb:
    """What each base value is multiplied by at the target, role by role."""

    ratios: str = "width=1,depth=1,batch=1,tokens=1"
    """Target over base: width=4,depth=4,batch=4,tokens=16; those left out are 1."""
    parameterisation: ParameterisationName = "completedp"
    """The table of rules."""
    alpha: float = 1.0
    """Residual exponent, from 1/2 to 1."""
    axes: str = ",".join(AXES)
    """The axes whose rules are on."""
    token_exponent: float = 0.5
    """The learning rate falls as m_D to minus this."""
    output_norm_eps: Literal["printed", "gradient"] = "printed"
    """The output norm's eps: x1 as printed, or m_N^-1 as its gradient."""
    beta_rule: Literal["linear", "power"] = "linear"
    """1 - beta times r, or beta to the power r."""
    weight_decay: Literal["torch", "independent"] = "torch"
    """Whether the optimizer multiplies decay by lr."""
    json: bool = False
    """Print JSON."""
    markdown: bool = False
    """Print the page of all rules instead (docs/rules.md)."""

    def run(self) -> int:
        """Print the factors."""
        from completedp.theory.rules_page import factors_table, rules_page

        if self.markdown:
            print(rules_page(), end="")
            return 0
        rules = Rules(
            parameterisation=self.parameterisation,
            alpha=self.alpha,
            axes=tuple(axis for axis in self.axes.split(",") if axis),
            token_exponent=self.token_exponent,
            output_norm_eps=self.output_norm_eps,
            beta_rule=self.beta_rule,
            weight_decay=self.weight_decay,
        )
        ratios = Ratios.parse(self.ratios)
        if not self.json:
            print(factors_table(rules, ratios))
            return 0
        print_json(
            {
                "parameterisation": rules.parameterisation,
                "alpha": rules.alpha,
                "ratios": ratios.to_dict(),
                "roles": {str(role): rules.factors(role, ratios).to_dict() for role in Role},
                "residual_multiplier": rules.residual_multiplier(ratios),
                "steps": ratios.steps,
            }
        )
        return 0


@dataclass(frozen=True, kw_only=True)
class DataVerb:
    """Tokenise text into a folder that `train` reads."""

    source: Positional[str]
    """stdlib, a .txt/.jsonl/.parquet file or a folder of them, or hf:OWNER/NAME[@CONFIG]."""
    out: str
    """Folder to write."""
    tokenizer: str = "bytes"
    """bytes, bpe (train one of --vocab tokens on the source), or a tokenizer's JSON file."""
    vocab: int = 4096
    """Vocabulary of a BPE to be trained."""
    valid_fraction: float = 0.01
    """Share of the documents held out for validation."""
    text_field: str = "text"
    """The field of .jsonl, .parquet and hf: records that holds the text."""
    json: bool = False
    """Print the manifest as JSON."""

    def run(self) -> int:
        """Tokenise, or find it done."""
        from dataclasses import asdict

        from completedp.lm.prepare import prepare_source
        from completedp.lm.tokens import Manifest

        with _counter("tokenise") as progress:
            manifest: Manifest = prepare_source(
                self.source,
                self.out,
                tokenizer=self.tokenizer,
                vocab=self.vocab,
                valid_fraction=self.valid_fraction,
                text_field=self.text_field,
                progress=progress,
            )
        if self.json:
            print_json(asdict(manifest))
            return 0
        for name, split in manifest.splits.items():
            print(
                f"{name}: {split.documents:,} documents, {split.tokens:,} tokens, "
                f"{split.bytes:,} bytes of text"
            )
        print(f"vocabulary {manifest.vocab} ({manifest.tokenizer}), in {self.out}")
        return 0


@dataclass(frozen=True, kw_only=True)
class TrainVerb(TrainConfig):
    """Train the reference model at any scale with a recipe; the same command resumes."""

    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        """Train."""
        from completedp.common.process import Interrupted
        from completedp.training.distributed import AgreedError, is_follower
        from completedp.training.loop import train

        try:
            result = train(as_config(self, TrainConfig))
        except (AgreedError, Interrupted) as stop:
            if is_follower():  # the first rank says it for all
                sys.exit(2 if isinstance(stop, AgreedError) else 130)
            raise
        if is_follower():
            return 0
        if self.json:
            print_json(result.to_dict())
            return 0
        line = f"{result.status} after {result.steps:,} steps and {result.tokens:,} tokens"
        if result.valid_loss is not None:
            line += (
                f": validation loss {result.valid_loss:.4f} nats per token, "
                f"{result.valid_bits_per_byte:.4f} bits per byte"
            )
        elif result.last_finite_loss is not None:
            line += f": last finite training loss {result.last_finite_loss:.4f}"
        print(f"{line}\n{self.out}")
        return 0


@dataclass(frozen=True, kw_only=True)
class CoordcheckVerb(CheckConfig):
    """Does every feature move by the same amount at every width and depth? Pass or fail."""

    out: str | None = None
    """Folder for the numbers (JSON) and the plot (SVG; needs matplotlib)."""
    all_rows: bool = False
    """List the rows that pass too."""
    json: bool = False
    """Print JSON."""
    check: Suppress[str] = "coordcheck"

    def run(self) -> int:
        """Run the check, print the verdict."""
        from completedp.evidence.run import run_check
        from completedp.evidence.text import check_text

        result = run_check(self.check, as_config(self, CheckConfig), self.out)
        if self.json:
            print_json(result.to_dict())
        else:
            print(check_text(result, all_rows=self.all_rows))
        return 0 if all(result.passed(p) for p in self.parameterisations) else 1


@dataclass(frozen=True, kw_only=True)
class GradcheckVerb(CoordcheckVerb):
    """Does eps keep its size relative to the gradients, and do the invariants hold?"""

    check: Suppress[str] = "gradcheck"


@dataclass(frozen=True, kw_only=True)
class QuickstartVerb:
    """Search a tiny model's values, carry them to a larger one, train it, report. On a CPU."""

    out: str = "runs/quickstart"
    """Folder for everything."""
    json: bool = False
    """Print what was found as JSON."""

    def run(self) -> int:
        """Do it all on a CPU in a few minutes."""
        from completedp.evidence.quickstart import quickstart

        found = quickstart(Path(self.out))
        if self.json:
            print_json(found)
        else:
            print(f"{found['sentence']}\nreport: {found['report']}")
        return 0


@dataclass(frozen=True, kw_only=True)
class SweepVerb(SweepConfig):
    """Does a hyperparameter's best value stay put as the model or its training grows?"""

    json: bool = False
    """Print the verdict as JSON."""

    def run(self) -> int:
        """Sweep, or go on, and print the verdict."""
        from dataclasses import asdict

        from completedp.evidence.sweep import sweep, sweep_text

        config = as_config(self, SweepConfig)
        lines = sweep(config)
        if self.json:
            print_json([asdict(line) for line in lines])
        else:
            print(f"{sweep_text(config, lines)}\n{self.out}/sweep.svg")
        return 0


@dataclass(frozen=True, kw_only=True)
class DoctorVerb:
    """What this machine has: versions, devices, extras, and whether they work."""

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Look and say."""
        from completedp.evidence.doctor import examine

        found = examine()
        if self.json:
            print_json(found)
            return 0
        for name, value in found.items():
            print(f"{name:<24} {value}")
        return 0


VERBS = {
    "quickstart": QuickstartVerb,
    "rules": RulesVerb,
    "plan": PlanVerb,
    "inspect": InspectVerb,
    "data": DataVerb,
    "train": TrainVerb,
    "coordcheck": CoordcheckVerb,
    "gradcheck": GradcheckVerb,
    "search": SearchVerb,
    "sweep": SweepVerb,
    "bench": BenchVerb,
    "doctor": DoctorVerb,
}


def main() -> None:
    """The `completedp` command."""
    # GNU OpenMP's threads spin while they wait for each other. With any other program on the
    # machine that makes torch 10 to 20 times slower; a short spin costs nothing when alone.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    warnings.formatwarning = lambda message, *_, **__: f"completedp: {message}\n"
    try:
        sys.exit(_parse(sys.argv[1:]).run())
    except CompletedpError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        resumes = sys.argv[1:2] in (["train"], ["quickstart"], ["sweep"], ["search"])
        again = ": the same command goes on where it stopped" if resumes else ""
        print(f"completedp: interrupted{again}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        where = f" {error.filename!r}" if error.filename else ""
        _fail(f"{error.strerror or error}{where}")
    except (RuntimeError, MemoryError) as error:
        # torch's own words for it, on CPU and GPU; any other such error is a fault of ours.
        if not re.search("out of memory|can't allocate memory", str(error)):
            raise
        _fail("out of memory: take a smaller --micro-batch, --width, --depth or --vocab")


def parse_count(text: str) -> int:
    """A whole number as people write them: 65536, 16_384, 1e9, 16M, 1.5B."""
    factor = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}.get(text[-1:].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    try:
        value = int(digits) * factor if re.fullmatch(r"[+-]?[\d_]+", digits) else None
        value = float(digits) * factor if value is None else value
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number (65536, 1e9, 16M)") from None
    if value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise ValueError(f"{text!r} is not a whole number (65536, 1e9, 16M)")
    return int(value)


def _parse(arguments: list[str]) -> Any:
    """tyro's parse, its boxed errors made one line."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def _(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda args: parse_count(args[0]),
            is_instance=lambda x: isinstance(x, int),
            str_from_instance=lambda x: [str(x)],
        )

    verbs: Any = tuple(
        Annotated[cls, subcommand(name, description=cls.__doc__)] for name, cls in VERBS.items()
    )
    union: Any = verbs[0]
    for verb in verbs[1:]:
        union = union | verb
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                union,
                prog="completedp",
                description="Tune small, transfer to any width, depth, batch and duration.",
                args=arguments,
                config=(OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
                registry=registry,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        verb = arguments[0] if arguments and arguments[0] in VERBS else ""
        _fail(f"{_one_line(said.getvalue())} (see completedp {verb + ' ' * bool(verb)}--help)")


def _one_line(box: str) -> str:
    """What a boxed message of tyro's says before its first rule, without its title."""
    lines = [line.strip(" │╭╮╰╯") for line in box.splitlines()[1:]]
    body: list[str] = []
    for line in lines:
        if line and set(line) <= {"─"}:
            break
        body.append(line)
    text = " ".join(filter(None, body))
    text = re.sub(r"^Error parsing (\w+Verb|action): ", "", text)
    return re.sub(r"no type matching .* could be instantiated .*<class '\w+'>: ", "", text)


def _fail(message: str) -> Any:
    print(f"completedp: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


@contextlib.contextmanager
def _counter(title: str) -> Any:
    """Documents and tokens so far, on standard error."""
    import time

    said = [time.monotonic()]
    live = sys.stderr.isatty()

    def show(documents: int, tokens: int) -> None:
        now = time.monotonic()
        if now - said[0] >= (0.2 if live else 5.0):
            said[0] = now
            end = "\r" if live else "\n"
            print(f"{title}: {documents:,} documents, {tokens:,} tokens", end=end, file=sys.stderr)

    yield show
    if live:
        print(file=sys.stderr)
