"""What can go wrong, each with a sentence that says what to do. Imports nothing of the library."""

from collections.abc import Iterable
from difflib import get_close_matches


class DipsError(Exception):
    """Anything the user can mend; the command line prints it as one sentence and exits with 2."""


class DataError(DipsError):
    """Bad input data: the message names the file and the line or field, and the remedy."""


class ConfigError(DipsError):
    """A setting that does not exist, is out of range, or contradicts another one."""


class PluginError(ConfigError):
    """A class of the user's own that cannot be imported or made, or does not fit."""


class RunError(DipsError):
    """A run directory that is missing, incomplete, or of another version."""


class TrainingDiverged(DipsError):
    """The loss is no longer a number: the message gives step, learning rate and advice."""


class DataWarning(UserWarning):
    """Input or a setting that works, but probably not as meant; one sentence with the remedy."""


def choose_from(name: str, known: Iterable[str]) -> str:
    """Return what to choose instead of an unknown name: the most similar one first.

    >>> choose_from("ml-2m", ["ml-100k", "ml-1m"])
    "did you mean 'ml-1m'? choose one of ml-100k, ml-1m"
    """
    names = list(known)
    return f"{did_you_mean(name, names)}choose one of {', '.join(names)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question for the most similar known name and a blank, or an empty string."""
    plain = {entry.lower(): entry for entry in known}
    near = get_close_matches(name.lower(), plain, n=1)
    return f"did you mean '{plain[near[0]]}'? " if near else ""
