"""What can go wrong, each with a sentence that says what to do. Imports nothing of the library."""


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
