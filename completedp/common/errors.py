"""The one error users see: a sentence that quotes their input and says what to do.

The command line prints it as a single line and exits with code 2; in Python it is a ValueError. And
the one warning that has a name, for those who wish not to see it.
"""


class CompletedpError(ValueError):
    """Something the user can mend: a value, a file, a combination of options."""


class ScaleWarning(UserWarning):
    """A recipe is asked for more than its base, or what was measured of it, speaks for."""
