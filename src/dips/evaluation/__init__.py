"""How good predictions are, and whether one policy is really better than another."""
