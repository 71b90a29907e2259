"""Pure functions of tensors, each tested against an oracle. Knows no users, items or files."""
