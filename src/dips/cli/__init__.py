"""The command line: parse, call, print; no logic of its own."""

import os
import sys

# Threads that spin at barriers make a busy machine ten times slower; set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def entry() -> None:
    """The console script: an interrupt exits with 130 even while torch is being imported."""
    try:
        from dips.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
