"""Sketches in production: kept up to date from a stream of events, durably and exactly once."""
