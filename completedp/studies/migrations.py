"""Stores of older versions, brought to this one step by step when they are opened."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from completedp.studies.schema import SCHEMA, STUDIES, TRIALS


def _add_sites(connection: sa.Connection) -> None:
    """Version 2: a trial has a site, and a study's spec says its sites and its task."""
    connection.exec_driver_sql(
        f"ALTER TABLE {TRIALS.name} ADD COLUMN site INTEGER NOT NULL DEFAULT 0"
    )
    for row in connection.execute(sa.select(STUDIES.c.id, STUDIES.c.spec)).all():
        spec = json.loads(row.spec)
        if "recipe" in spec and "vocab" in spec:
            new = json.dumps(_with_task(spec))
            this = sa.update(STUDIES).where(STUDIES.c.id == row.id)
            connection.execute(this.values(spec=new))


def _with_task(old: Mapping[str, Any]) -> dict[str, Any]:
    """A search of version 1: the reference model on a folder of tokens, at its recipe's base."""
    # Here, since a store of this version is opened without torch.
    from completedp.lm.reference import ReferenceModel, meta_model
    from completedp.lm.shape import Shape
    from completedp.studies.spec import Site
    from completedp.tasks.task import REFERENCE, parameters_digest
    from completedp.theory.recipe import Recipe

    recipe, shape = Recipe.from_dict(old["recipe"]), Shape(**old["shape"])
    make = ReferenceModel(vocab=old["vocab"], shape=shape, head_dim=recipe.head_dim)
    kept = ("trials", "engine", "seed", "stop_early", "space")
    return {
        **{name: old[name] for name in kept},
        "recipe": recipe.to_dict(),
        "sites": [Site(scale=recipe.base, rules=recipe.rules).to_dict()],
        "task": {
            "model": REFERENCE,
            "shape": asdict(shape),
            "parameters": parameters_digest(meta_model(make.config(recipe.base))),
            "loss": None,
            "data": old["text"],
            "unit": old["context"],
            "z_loss": old["z_loss"],
            "eval_examples": old["eval_sequences"],
            "overrides": {},
        },
    }


def _add_identity(connection: sa.Connection) -> None:
    """Version 3: a store has an identity."""
    connection.exec_driver_sql(
        f"ALTER TABLE {SCHEMA.name} ADD COLUMN identity TEXT NOT NULL DEFAULT ''"
    )
    connection.execute(sa.update(SCHEMA).values(identity=new_identity()))


def new_identity() -> str:
    """That no other store has."""
    return secrets.token_hex(16)


MIGRATIONS: dict[int, Callable[[sa.Connection], None]] = {1: _add_sites, 2: _add_identity}
"""What makes of a store of each version one of the next."""
