"""`python -m completedp` is the `completedp` command."""

from completedp.cli import main

main()
