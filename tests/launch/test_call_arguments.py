"""The buffers that calls get their arguments in."""

from __future__ import annotations

import pytest
import torch

from pkb.launch.arguments import Buffers, Writes

BASE = torch.arange(48.0).reshape(6, 8)
LAYOUTS = {
    "contiguous": BASE,
    "transposed": BASE.T,
    "every second column": BASE[:, ::2],
    "padded rows": BASE[:, :5],
    "expanded": BASE[:1].expand(4, 8),
    "empty": BASE[:0],
    "number": BASE[0, 0],
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_call_gets_the_layout_of_the_draw_in_memory_of_its_own(tensor: torch.Tensor) -> None:
    buffers = Buffers(Writes())
    (first,) = buffers.fill((tensor,)).arguments
    (second,) = buffers.fill((tensor,)).arguments
    assert first.stride() == tensor.stride()
    assert torch.equal(first, tensor)
    assert first.data_ptr() == second.data_ptr()
    assert tensor.numel() == 0 or first.data_ptr() != tensor.data_ptr()
