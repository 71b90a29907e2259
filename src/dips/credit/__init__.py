"""Credit assignment: gradients of later losses with respect to the entries a decision kept."""
