"""Tensors in, tensors out: pure functions, each with an oracle in the tests."""
