"""Where interactions come from. Nothing here imports polars before a reader needs it."""
