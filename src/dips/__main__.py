"""`python -m dips`: the command without a script, so that a launcher of processes can start it.

Python puts the current directory first on the import path; the command `dips` does not have it.
"""

import os
import sys

if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from dips.cli import entry

entry()
