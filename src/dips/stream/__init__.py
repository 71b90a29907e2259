"""Users' events as tensors, and when a sketch is refreshed."""
