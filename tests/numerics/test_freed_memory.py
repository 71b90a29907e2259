"""Freed memory is kept while training, and given back at the end."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from contextlib import nullcontext
from dips.numerics.freed_memory import keep_freed_memory

torch.set_num_threads(1)
MEBIBYTE = 2**18  # numbers


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


with {context} as supported:
    for count in range(34):
        if count == 4:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        first = torch.zeros(40 * MEBIBYTE).add_(1)
        del first
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    inside = resident()
print(supported, faults, inside - resident())
"""


def measured(context):
    code = FAULTS.replace("{context}", context)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    supported, faults, freed = found.stdout.split()
    return supported, int(faults), int(freed)


def test_new_tensors_get_the_pages_of_deleted_ones():
    supported, faults, freed = measured("keep_freed_memory()")
    if supported != "True":
        pytest.skip("the C library has no mallopt")
    _, plain, _ = measured("nullcontext()")
    pages = 40 * 2**20 // 4096
    assert plain > 20 * pages  # otherwise there is nothing to gain
    assert faults < plain / 4
    assert freed > 20 * 2**20
