"""Experiments: one run, tables of runs, and everything that reads runs."""
