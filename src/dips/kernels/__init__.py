"""Compiled versions of the reference code: numba on the CPU, Triton on CUDA."""
