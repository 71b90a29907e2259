"""Classes of the user's own, found by import name."""
