"""Defaults of a keeper's settings; imports no torch, as `--help` shows them."""

BATCH = 1000
"""Default of `batch`: most events in a commit."""
ID_BYTES = 64 * 1024 * 1024
"""Default of `id_bytes`: a deduplication window of a million event ids."""
