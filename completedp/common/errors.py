"""The one error users see: a sentence that quotes their input and says what to do.

The command line prints it as a single line and exits with code 2; in Python it is a ValueError. And
the warnings that have names, for those who wish not to see them, and others' errors in one line.
"""


class CompletedpError(ValueError):
    """Something the user can mend: a value, a file, a combination of options.

    >>> import completedp as cdp
    >>> try:
    ...     cdp.Scale(width=0, depth=4, batch=16_384, tokens=16_000_000)
    ... except cdp.CompletedpError as error:
    ...     print(error)
    width = 0 must be a whole number of at least 1
    """


class DataWarning(UserWarning):
    """Text is too little, or too unequal, for what is asked of it.

    >>> import warnings, completedp as cdp
    >>> with warnings.catch_warnings():  # not to see them
    ...     warnings.simplefilter("ignore", cdp.DataWarning)
    """


class ScaleWarning(UserWarning):
    """A recipe is asked for more than its base, or what was measured of it, speaks for.

    >>> import warnings, completedp as cdp
    >>> with warnings.catch_warnings():  # not to see them
    ...     warnings.simplefilter("ignore", cdp.ScaleWarning)
    """


class ModelWarning(UserWarning):
    """A model was not seen to run, so what it was taken for rests on names and shapes alone.

    >>> import warnings, completedp as cdp
    >>> with warnings.catch_warnings():  # not to see them
    ...     warnings.simplefilter("ignore", cdp.ModelWarning)
    """


def one_line(words: object) -> str:
    """What an error that is not ours says, on one line."""
    return " ".join(str(words).split())


def first_line(error: BaseException) -> str:
    """The first line of what an error that is not ours says; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def short(error: BaseException, most: int = 300) -> str:
    """The same with its type, and no more than so many letters of it.

    >>> short(KeyError("a"))
    "KeyError: 'a'"
    """
    return f"{type(error).__name__}: {one_line(error):.{most}}"
