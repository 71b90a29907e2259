"""The command line: one file per command. Parses, calls `dips.api`, prints; has no logic."""

import sys


def entry() -> None:
    """Run the console script; an interrupt exits with 130, also while torch is imported."""
    try:
        from dips.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
