"""Sources: where events come from. Each one turns its input into batches for a keeper."""
