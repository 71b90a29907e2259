"""Results for people: figures and tables from plain rows. Knows nothing of how they were made."""
