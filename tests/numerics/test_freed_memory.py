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
after = torch.zeros(40 * MEBIBYTE).add_(1)
held = resident()
del after
print(supported, faults, inside, held, resident())
"""


def measured(context):
    code = FAULTS.replace("{context}", context)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    supported, *numbers = found.stdout.split()
    return supported, *map(int, numbers)


def test_new_tensors_get_the_pages_of_deleted_ones():
    supported, faults, inside, held, end = measured("keep_freed_memory()")
    if supported != "True":
        pytest.skip("the C library has no mallopt")
    _, plain, *_ = measured("nullcontext()")
    pages = 40 * 2**20 // 4096
    assert plain > 20 * pages  # otherwise there is nothing to gain
    assert faults < plain / 4
    assert inside - end > 20 * 2**20  # given back at the end of the block
    assert held - end > 20 * 2**20  # and nothing is kept after it
