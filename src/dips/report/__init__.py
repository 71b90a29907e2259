"""Tables, charts and pages from plain rows of results. Knows nothing about training."""
