"""Policies: score the candidates of a refresh; the highest scores stay in the sketch."""
