"""The one error users see: a sentence that quotes their input and says what to do.

The command line prints it as a single line and exits with code 2; in Python it is a ValueError.
"""


class CompletedpError(ValueError):
    """Something the user can mend: a value, a file, a combination of options."""
