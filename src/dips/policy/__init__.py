"""Policies score candidates; they choose nothing and remember nothing."""
