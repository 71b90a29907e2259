"""The scripts in results/ are called by path; tests import them from there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "results"))
