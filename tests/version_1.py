"""A store as version 1 made it, by hand: trials without sites, specs without tasks."""

import json
from typing import Any

import numpy as np
import sqlalchemy as sa

_TABLES = """
CREATE TABLE completedp_schema (version INTEGER NOT NULL PRIMARY KEY);
CREATE TABLE completedp_studies (id {key}, name TEXT NOT NULL UNIQUE, spec TEXT NOT NULL,
    budget BIGINT NOT NULL);
CREATE TABLE completedp_trials (study INTEGER NOT NULL REFERENCES completedp_studies (id),
    number BIGINT NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, worker TEXT NOT NULL,
    token TEXT NOT NULL, lease_until {double} NOT NULL, seed BIGINT NOT NULL,
    point {bytes} NOT NULL, started_at {double} NOT NULL, finished_at {double}, sequence BIGINT,
    loss {double}, status TEXT, steps BIGINT, curve {bytes}, result TEXT,
    PRIMARY KEY (study, number), UNIQUE (study, sequence));
CREATE TABLE completedp_notes (study INTEGER NOT NULL REFERENCES completedp_studies (id),
    key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (study, key));
CREATE INDEX completedp_running ON completedp_trials (study, number) WHERE state = 'running';
INSERT INTO completedp_schema VALUES (1)
"""
_SQLITE = {"key": "INTEGER NOT NULL PRIMARY KEY", "double": "DOUBLE", "bytes": "BLOB"}
_POSTGRES = {"key": "SERIAL PRIMARY KEY", "double": "DOUBLE PRECISION", "bytes": "BYTEA"}


def write_store(url: str, spec: dict[str, Any], losses: dict[int, float | None]) -> None:
    """A study `tune` with trials by number: finished with a loss, or given up by their worker."""
    is_postgres = url.startswith("postgresql")
    address = (
        url.replace("postgresql:", "postgresql+psycopg:") if is_postgres else f"sqlite:///{url}"
    )
    engine = sa.create_engine(address, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in _TABLES.format(**_POSTGRES if is_postgres else _SQLITE).split(";"):
            connection.exec_driver_sql(statement)
        study = {"name": "tune", "spec": json.dumps(spec), "budget": spec["trials"]}
        insert_into(connection, "completedp_studies", study)
        for number, loss in losses.items():
            row = {
                "study": 1,
                "number": number,
                "attempt": 1,
                "worker": "old",
                "token": f"t{number}",
            }
            row |= {"lease_until": 0.0, "seed": 100 + number, "started_at": 1.0}
            row |= {"point": np.full(3, float(number)).tobytes(), "state": "running"}
            if loss is not None:
                row |= {"state": "finished", "sequence": number, "finished_at": 2.0, "loss": loss}
                row |= {"status": "ok", "steps": 1, "curve": np.float32([loss]).tobytes()}
            insert_into(connection, "completedp_trials", row)


def insert_into(connection: sa.Connection, table: str, row: dict[str, Any]) -> None:
    names = ", ".join(row)
    values = ", ".join(f":{name}" for name in row)
    connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)


def old_spec(spec: dict[str, Any], vocab: int) -> dict[str, Any]:
    """A search's spec as version 1 would have written it."""
    task, recipe = spec["task"], spec["recipe"] | {"schema": 1}
    del recipe["overrides"]
    recipe["rules"] = {k: v for k, v in recipe["rules"].items() if k != "optimizer"}
    kept = ("trials", "engine", "seed", "stop_early", "space")
    return {name: spec[name] for name in kept} | {
        "recipe": recipe,
        "shape": task["shape"],
        "vocab": vocab,
        "text": task["data"],
        "context": task["unit"],
        "z_loss": task["z_loss"],
        "eval_sequences": task["eval_examples"],
    }
