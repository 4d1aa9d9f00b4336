"""Feed the package damaged files and odd command lines, for as long as you like.

    python scripts/fuzz.py recipes --count 10000 --seed 0
    python scripts/fuzz.py commands --seed 3 --first 812 --count 1     # one case again
    make fuzz                                                          # all kinds, 10,000 each

A case follows from kind, seed and number alone. It may work, or be refused with a CompletedpError
of one line; anything else is a fault, and is printed with its number. Kinds: recipes, manifests,
stores, checkpoints (with what else a run folder holds), commands.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import math
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

import completedp
from completedp.common.errors import CompletedpError

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3.5, -0.0, 1e-320, 1e308, -1e308, 2**31, 2**63, 10**400),
    *(math.nan, math.inf, -math.inf, "", " ", "x", "0", "nan", "completedp", "\x1b[31mred", "\n"),
    *("\ud800", "a" * 5000, "../../etc/passwd", "/dev/null", [], {}, [[]], [None], {"": 0}, [1e9]),
]
WORDS = """
0 1 2 -1 7 64 128 1e9 16M 1.5 nan inf -inf 1e400 0x10 True x width=2 width=4,depth=2
depth=2,tokens=2 lr/type/qkv lr residual/depth/9 mup completedp cpu cuda cuda:99
recipe.json broken.json text.txt empty nowhere stdlib search.db . / /dev/null
postgresql://u:p@localhost:1/x postgresql://u:p@h:port/x postgres:/x sqlite:///search.db
hf:x json:loads os:getcwd x.weight=qkv lr-width kronecker random default -- - --help
"""
"""What is given on command lines."""
SECONDS = 3.0
"""A command that is still at it by then is one that works."""
HANGS_SECONDS = 20.0
"""Of this process's own time: no case takes so long."""
PACKAGE = Path(completedp.__file__).parent.parent

Case = Callable[[random.Random], None]


def odd(rng: random.Random) -> Any:
    """A value that is seldom expected."""
    if rng.random() < 0.02:
        deep: Any = []
        for _ in range(3000):
            deep = [deep]
        return deep
    chosen = rng.choice([*ODD, rng.gauss(0, 10), rng.randrange(-(10**6), 10**6)])
    return copy.deepcopy(chosen)  # it may be changed in its turn


def damaged(rng: random.Random, data: Any) -> Any:
    """A JSON value with something in it changed, gone, added or in another place."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        places: list[tuple[Any, Any]] = []
        stack = [data]
        while stack:
            at = stack.pop()
            keys = list(at) if isinstance(at, dict) else range(len(at))
            places += [(at, key) for key in keys]
            stack += [at[key] for key in keys if isinstance(at[key], dict | list)]
        if not places:
            return odd(rng)
        at, key = rng.choice(places)
        other, theirs = rng.choice(places)
        what = rng.random()
        if what < 0.5:
            at[key] = odd(rng)
        elif what < 0.65:
            del at[key]
        elif what < 0.8:
            with contextlib.suppress(RecursionError):  # of a copy too deep to make
                at[key] = copy.deepcopy(other[theirs])
        elif isinstance(at, dict):
            at[rng.choice(["x", "", "\x1b", str(key) + "s", "__class__"])] = odd(rng)
        else:
            at.insert(rng.randrange(len(at) + 1), odd(rng))
    return data


def damaged_text(rng: random.Random, data: Any) -> bytes:
    """The JSON of a value that was damaged before or after it was written."""
    if rng.random() < 0.75:
        with contextlib.suppress(RecursionError):
            return json.dumps(damaged(rng, data)).encode("utf-8", "surrogatepass")
    return damaged_bytes(rng, json.dumps(data).encode())


def damaged_bytes(rng: random.Random, raw: bytes) -> bytes:
    """Bytes with some changed, cut off, doubled or put in."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 10])):
        at = rng.randrange(len(data) + 1)
        what = rng.random()
        if what < 0.5 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif what < 0.65:
            del data[at : at + rng.randrange(1, 1 + max(1, len(data)))]
        elif what < 0.8:
            data[at:at] = data[at : at + rng.randrange(1, 200)]
        elif what < 0.9:
            data[at:at] = rng.randbytes(rng.randrange(1, 20))
        else:
            del data[at:]
    return bytes(data)


def recipes(folder: Path) -> Case:
    """A recipe's file is read, shown, carried to a scale and written again."""
    from completedp.theory.recipe import Recipe
    from completedp.theory.recipe_page import recipe_page, summary
    from completedp.theory.transfer import Transfer
    from completedp.theory.trust import doubts

    plain = [Recipe.find(name).to_dict() for name in Recipe.names()]
    path = folder / "recipe.json"

    def case(rng: random.Random) -> None:
        path.write_bytes(damaged_text(rng, rng.choice(plain)))
        recipe = Recipe.load(path)
        recipe_page("fuzz", recipe)
        summary("fuzz", recipe)
        target = recipe.base.times(recipe.base / recipe.base)
        transfer = Transfer(recipe, target)
        for kind in recipe.types:
            for name in transfer.hyperparameters(kind):
                transfer.value(name, kind)
        list(doubts(recipe, target))
        recipe.save(folder / "again.json")
        if Recipe.load(folder / "again.json") != recipe:
            raise AssertionError("a recipe that was saved is another one when loaded")

    return case


def manifests(folder: Path) -> Case:
    """A folder of tokens is opened and read from."""
    from completedp.lm.batches import TokenDataset
    from completedp.lm.tokenizer import ByteTokenizer
    from completedp.lm.tokens import MANIFEST, Manifest, prepare

    text = folder / "text"
    text.mkdir()
    for number in range(8):
        (text / f"{number}.txt").write_text(f"some words of document {number} " * 4)
    tokens = folder / "tokens"
    prepare(str(text), tokens, ByteTokenizer(), valid_fraction=0.3, shard_tokens=300)
    good = {path: path.read_bytes() for path in tokens.iterdir()}
    plain = json.loads(good[tokens / MANIFEST])

    def case(rng: random.Random) -> None:
        for path, raw in good.items():
            path.write_bytes(raw)
        if rng.random() < 0.9:
            (tokens / MANIFEST).write_bytes(damaged_text(rng, plain))
        else:
            path = rng.choice(sorted(good))
            path.write_bytes(damaged_bytes(rng, good[path]))
        found = Manifest.load(tokens, verify=rng.random() < 0.5)
        found.digest()
        for split in found.splits:
            data = TokenDataset(tokens, split, rng.choice([1, 8, 64, 1000]))
            data.rows(np.array([0, len(data) - 1]))

    return case


def stores(folder: Path) -> Case:
    """A store is opened, read, shown, worked on and exported."""
    from completedp.studies.engines import Bounds, Proposal
    from completedp.studies.export import export_csv
    from completedp.studies.space import Space
    from completedp.studies.spec import Site, StudySpec
    from completedp.studies.status import status
    from completedp.studies.store import Store
    from completedp.theory.recipe import Recipe

    recipe, clock = Recipe.default(), 1e9
    names = ("lr/global", "eps/global")
    zero = np.zeros(2)
    spec = StudySpec(
        engine="recombine",
        seed=0,
        stop_early=False,
        space=Space(
            kind="global",
            coordinates=names,
            bounds=Bounds(low=zero - 4, high=zero + 4, start=zero),
        ),
        recipe=recipe,
        sites=(Site(scale=recipe.base, rules=recipe.rules),),
        task={"model": "reference", "data": "text"},
        trials=9,
    )
    path = folder / "store.db"
    with Store(str(path), clock=lambda: clock) as store:
        study = store.create_study("fuzz", spec.to_dict())
        study.set_note("devices", {"w": "cpu"})
        for number in range(6):
            made = Proposal(point=zero + number / 9, seed=number)
            claim = study.claim("w", lambda _, made=made: made, lease_seconds=60.0)
            if claim is not None and number < 4:
                loss = math.inf if number == 2 else 3.0
                study.finish(claim, loss=loss, status="ok", steps=2, curve=[4.0, 3.0], result={})
    good = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as file:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = [name for (name,) in file.execute(query)]
        columns = [
            (table, row[1])
            for table in tables
            for row in file.execute(f"PRAGMA table_info({table})")
        ]

    def tampered(rng: random.Random) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
            for _ in range(rng.choice([1, 1, 2, 4])):
                table, column = rng.choice(columns)
                value = odd(rng)
                if column == "spec" and rng.random() < 0.8:
                    value = damaged(rng, spec.to_dict())
                if isinstance(value, list | dict):
                    with contextlib.suppress(RecursionError):
                        value = json.dumps(value)
                if isinstance(value, str):
                    value = value.encode("utf-8", "replace").decode()
                elif rng.random() < 0.1 or not isinstance(value, float | int | None):
                    value = rng.randbytes(rng.randrange(40))
                elif isinstance(value, int) and abs(value) >= 2**63:
                    value = float(min(value, 10**300))
                where = f" WHERE rowid = {rng.randrange(1, 7)}" * rng.randrange(2)
                statement = f"UPDATE {table} SET {column} = ?{where}"
                if rng.random() < 0.1:
                    statement, value = f"DELETE FROM {table}{where}", None
                with contextlib.suppress(sqlite3.Error):  # what the table itself refuses
                    file.execute(
                        statement, () if value is None and "?" not in statement else (value,)
                    )

    def case(rng: random.Random) -> None:
        for beside in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + beside).unlink(missing_ok=True)
        path.write_bytes(good)
        if rng.random() < 0.8:
            tampered(rng)
        else:
            path.write_bytes(damaged_bytes(rng, good))
        with Store(str(path), create=False, clock=lambda: clock) as store:
            study = store.study()
            study.counts()
            study.trials()
            study.workers()
            study.get_note("devices")
            print(status(study).lines(), file=io.StringIO())
            export_csv(study, folder / "trials.csv")
            made = Proposal(point=zero, seed=1)
            claim = study.claim("v", lambda _: made, lease_seconds=60.0)
            if claim is not None:
                study.finish(claim, loss=1.0, status="ok", steps=1, curve=[1.0])
            study.take_back(worker="w")
            StudySpec.from_dict(study.spec)

    return case


def checkpoints(folder: Path) -> Case:
    """A checkpoint is found, described and loaded; a result is read."""
    import torch
    from safetensors.torch import save_file
    from torch import nn

    from completedp.training import folder as run_folder
    from completedp.training.checkpoint import (
        FILE,
        find_checkpoint,
        load_checkpoint,
        read_about,
        read_step,
        save_checkpoint,
    )

    model = nn.Linear(3, 2)
    names = [name for name, _ in model.named_parameters()]
    group = {"params": list(model.parameters()), "param_names": names}
    optimizer = torch.optim.AdamW([group])
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    extra = {"seconds": 1.0, "first_loss": 5.0, "last_finite_loss": 4.0, "noise": [[1.0] * 4]}
    save_checkpoint(folder, model, optimizer, 7, extra, run={"seed": 0})
    path, result = folder / FILE, folder / "result.json"
    good = path.read_bytes()
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    plain = run_folder.Result(
        status="ok",
        steps=7,
        tokens=70,
        train_loss=4.0,
        valid_loss=4.1,
        valid_bits_per_byte=None,
        last_finite_loss=4.0,
        parameters=8,
        seconds=1.5,
    ).to_dict()

    def case(rng: random.Random) -> None:
        what = rng.random()
        if what < 0.5:
            path.write_bytes(damaged_bytes(rng, good))
        elif what < 0.75:  # whole, and what goes along is not
            text = damaged_text(rng, extra).decode("utf-8", "replace")
            step = str(rng.choice(ODD))[:5000].encode("utf-8", "replace").decode()
            path.unlink(missing_ok=True)
            try:
                along = json.loads(text)
                save_checkpoint(folder, model, optimizer, 7, along | {}, run={"seed": 0})
            except (TypeError, ValueError, RecursionError):  # no dictionary, so by hand
                save_file(tensors, path, {"step": rng.choice(["7", step]), "extra": text})
        else:
            result.write_bytes(damaged_text(rng, plain))
            run_folder.read_result(result)
            return
        read_step(folder)
        found = find_checkpoint(folder)
        if found is not None:
            # What went along is looked at before the tensors, which a damaged one may not have.
            run_folder.check_extra(found, read_about(found).extra)
            load_checkpoint(found, copy.deepcopy(model), optimizer)

    return case


def commands(folder: Path) -> Case:
    """A command line is parsed and, where it can be, run for a moment."""
    from completedp.cli.main import main
    from completedp.cli.shared import VERBS
    from completedp.studies.store import Store
    from completedp.theory.recipe import Recipe

    modules = sorted((PACKAGE / "completedp").rglob("[!_]*.py"))
    for path in modules:  # not to be cut off in the middle
        with contextlib.suppress(ImportError):
            import_module(".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    os.chdir(folder)
    Recipe.default().save(folder / "recipe.json")
    (folder / "broken.json").write_text("{")
    (folder / "text.txt").write_text("a few words\n<|endoftext|>\nand some more\n")
    (folder / "empty").mkdir()
    with Store(str(folder / "search.db")) as store:
        store.create_study("fuzz", {"trials": 3})
    parts = {"search": ["start", "worker", "ray", "status", "release", "best", "export"]}
    parts |= {"recipe": ["show", "compare", "list"], "bench": ["slots", "optimizer"]}
    flags = {name: sorted(_flags(verb)) for name, verb in VERBS.items()}
    words = [*WORDS.split(), "", " ", "\x1b[31m", "\ud800", "9" * 5000, "é", "a b"]
    slow = {"quickstart", "bench", "figure", "coordcheck", "gradcheck", "doctor"}

    def case(rng: random.Random) -> None:
        verb = rng.choice([*VERBS, "", "frobnicate"] if rng.random() < 0.05 else list(VERBS))
        line = [verb] if verb else []
        if verb in parts and rng.random() < 0.97:
            line.append(rng.choice(parts[verb]))
        for _ in range(rng.choice([0, 1, 1, 2, 3, 5])):
            if rng.random() < 0.8 and verb in flags:
                line.append(rng.choice(flags[verb]))
            line += [rng.choice(words) for _ in range(rng.choice([0, 1, 1, 1, 2]))]
        if verb in slow:  # else most of these would work, for minutes
            line += rng.choice([["--nonsense"], ["--device", "tpu"], ["--steps", "0"], ["--help"]])
        _run(main, line)

    return case


def _flags(kind: Any) -> set[str]:
    """The options of a verb and of its parts."""
    found: set[str] = set()
    for field in fields(kind):
        hint = get_type_hints(kind)[field.name]
        inner = [each for each in _leaves(hint) if hasattr(each, "__dataclass_fields__")]
        for each in inner:
            found |= _flags(each)
        if not inner:
            found.add("--" + field.name.replace("_", "-"))
    return found


def _leaves(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is None:
        yield hint
    for each in get_args(hint):
        yield from _leaves(each)


class _LongEnoughError(BaseException):
    """A command works, and goes on doing so."""


def _run(main: Callable[[], None], line: list[str]) -> None:
    """A command in this process; what it may not do is an AssertionError."""

    late: list[bool] = []

    def enough(*_: Any) -> None:
        late.append(True)
        raise _LongEnoughError

    before, sys.argv = sys.argv, ["completedp", *line]
    signal.signal(signal.SIGALRM, enough)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    out, said, code = io.StringIO(), io.StringIO(), None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            main()
    except SystemExit as stop:
        code = stop.code
    except _LongEnoughError:
        code = 0
    except BaseException as error:
        if not late:  # what an alarm broke off may fail in any way
            raise RuntimeError(f"completedp {line!r:.300}") from error
        code = 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.argv = before
    if code == 2:
        last = (said.getvalue().strip().splitlines() or [""])[-1]
        if last.startswith("completedp: error: "):
            raise CompletedpError(last)
    if code not in (0, 1, None):
        raise AssertionError(f"completedp {line!r:.300}: {code}, {said.getvalue()[-300:]!r}")


KINDS: dict[str, Callable[[Path], Case]] = {
    "recipes": recipes,
    "manifests": manifests,
    "stores": stores,
    "checkpoints": checkpoints,
    "commands": commands,
}


def fuzz(kind: str, count: int, seed: int, first: int = 0, *, quiet: bool = False) -> Counter[str]:
    """Run some cases; returns how many worked, were refused, and were faults."""
    found: Counter[str] = Counter()
    said, here = time.monotonic(), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = KINDS[kind](Path(folder))
        try:
            for number in range(first, first + count):
                found[outcome(case, kind, seed, number)] += 1
                if not quiet and time.monotonic() - said > 5.0:
                    said = time.monotonic()
                    print(f"{kind} {number + 1 - first}/{count} {dict(found)}", flush=True)
        finally:
            os.chdir(here)
    return found


def outcome(case: Case, kind: str, seed: int, number: int) -> str:
    """How one case ends: `worked`, `refused` or `faults`, the last with its traceback printed."""
    signal.signal(signal.SIGPROF, _hangs)
    signal.setitimer(signal.ITIMER_PROF, HANGS_SECONDS)
    try:
        case(random.Random(f"{kind}/{seed}/{number}"))
    except CompletedpError as error:
        message = str(error)
        if message.strip() and len(message.splitlines()) == 1:
            return "refused"
        print(f"{kind} --seed {seed} --first {number} --count 1: {message!r:.300}")
        return "faults"
    except Exception:
        print(f"{kind} --seed {seed} --first {number} --count 1:\n{traceback.format_exc()[-3000:]}")
        return "faults"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "worked"


def _hangs(*_: Any) -> None:
    raise TimeoutError(f"no end within {HANGS_SECONDS:.0f} s")


def main() -> int:
    """Fuzz one kind, or all; 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    faults = 0
    for kind in KINDS if options.kind == "all" else [options.kind]:
        began = time.monotonic()
        found = fuzz(kind, options.count, options.seed, options.first)
        seconds = time.monotonic() - began
        counts = ", ".join(f"{found[name]} {name}" for name in ("worked", "refused", "faults"))
        print(f"{kind}: {options.count} cases from seed {options.seed}: {counts} ({seconds:.0f} s)")
        faults += found["faults"]
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
