"""Sketches: K kept interactions per user, and the one way in which they change."""
