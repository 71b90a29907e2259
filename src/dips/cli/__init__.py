"""The command line: parse, call, print; no logic of its own."""

import os

# Threads that spin at barriers make a busy machine ten times slower; set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
