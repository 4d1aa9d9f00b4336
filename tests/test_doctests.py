"""Examples in docstrings do what they show."""

import doctest
import importlib
import pkgutil

import pytest

import completedp.theory

THEORY = [
    f"completedp.theory.{found.name}" for found in pkgutil.iter_modules(completedp.theory.__path__)
]
WITH_MODELS = ["completedp.apply.plan", "completedp.apply.classify"]


@pytest.mark.parametrize("name", [*THEORY, *WITH_MODELS])
def test_examples_in_docstrings(name: str) -> None:
    """Every example gives what stands under it."""
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples() -> None:
    """The functions that users call have one."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    shown = {
        test.name
        for name in (*THEORY, *WITH_MODELS)
        for test in finder.find(importlib.import_module(name))
        if test.examples
    }
    for name in ("rules.factors", "recipe.Recipe", "scale.Scale", "transfer.Transfer"):
        assert f"completedp.theory.{name}" in shown
    assert {"completedp.apply.plan.plan", "completedp.apply.classify.classify"} <= shown
