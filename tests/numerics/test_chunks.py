"""Chunks fit into memory, and on a CPU into its caches."""

from __future__ import annotations

import pytest
import torch

from dips.numerics.chunks import CPU_CACHE_ELEMENTS, MIN_CPU_ROWS, rows_per_chunk, split_into_chunks


@pytest.mark.parametrize("breadth", [1, 100, 5_000, 1_000_000])
@pytest.mark.parametrize("most", [1, 1 << 22, 1 << 26])
def test_chunks_on_a_cpu_fit_its_caches(most: int, breadth: int) -> None:
    cpu, cuda = (rows_per_chunk(most, breadth, torch.device(name)) for name in ("cpu", "cuda"))
    assert cuda == max(1, most // breadth)
    assert 1 <= cpu <= cuda
    assert cpu * breadth <= max(CPU_CACHE_ELEMENTS, MIN_CPU_ROWS * breadth)
    assert cpu == cuda or cpu >= MIN_CPU_ROWS


@pytest.mark.parametrize("axis", [0, 1])
def test_chunks_concatenate_to_the_input(axis: int) -> None:
    breadth = CPU_CACHE_ELEMENTS // 20  # 20 rows per chunk
    rows = torch.arange(3 * 50 * 2).view(3, 50, 2).transpose(0, 1 - axis)
    chunks = list(split_into_chunks((rows, rows[..., 0]), breadth, axis))
    assert [chunk[0].shape[axis] for chunk in chunks] == [20, 20, 10]
    for whole, parts in zip((rows, rows[..., 0]), zip(*chunks, strict=True), strict=True):
        assert torch.equal(torch.cat(parts, axis), whole)


def test_no_rows_give_one_empty_chunk() -> None:
    assert [len(chunk) for chunk in split_into_chunks(torch.zeros(0, 2), 5)] == [0]
