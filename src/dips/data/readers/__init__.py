"""Readers of dataset files: one module per layout, and what they share. They need polars."""
