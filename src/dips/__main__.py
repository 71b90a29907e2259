"""`python -m dips`: the command without a script, so that a launcher of processes can start it."""

from dips.cli import entry

entry()
