"""The command line: a file for each verb, and `main`."""

from completedp.cli.main import main

__all__ = ["main"]
