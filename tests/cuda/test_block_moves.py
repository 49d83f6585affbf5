"""Where solutions that move blocks say their blocks lie: their host side with the kernel's move done in torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import pkb.cuda
from pkb.cuda.blocks import Side
from pkb.problems._check import Expected
from pkb.problems._draw import derive_seeds, make_draw
from pkb.problems._find import get_problem

SOLUTIONS = Path(__file__).parents[2] / "solutions"
MOVERS = sorted(f.parents[1].name for f in SOLUTIONS.glob("*/cuda/solution.py") if "BlockMover" in f.read_text())


@dataclass
class RecordedMoves:
    """Stands for `BlockMover`; keeps what each rank asked for until all have."""

    ranks: list[tuple[torch.Tensor, torch.Tensor, tuple[Side, Side], int]] = field(default_factory=list)

    def move(
        self, tensor: torch.Tensor, out: torch.Tensor, sides: tuple[Side, Side], block_elems: int, group: Any = None
    ) -> None:
        assert out.is_contiguous()
        self.ranks.append((tensor.contiguous().view(-1), out.view(-1), sides, block_elems))

    def carry_out(self) -> None:
        """What `move_blocks` of blocks.cuh does, for all ranks."""
        for owner, (_, out, (_, target), block_elems) in enumerate(self.ranks):
            unit = torch.arange(block_elems)
            for source_rank, (tensor, _, (source, _), _) in enumerate(self.ranks):
                exists = owner * source.step + unit % source.run < source.stride
                block = torch.zeros(block_elems, dtype=tensor.dtype)
                block[exists] = tensor[places(source, unit, owner)[exists]]
                out[places(target, unit, source_rank)] = block


def places(side: Side, unit: torch.Tensor, rank: int) -> torch.Tensor:
    return unit // side.run * side.stride + rank * side.step + unit % side.run


def load(problem: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"mover_{problem}", SOLUTIONS / problem / "cuda" / "solution.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("name", MOVERS)
def test_blocks_lie_where_the_oracle_has_them(name: str, world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = get_problem(name)
    judge_side = problem.load()
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: world_size)
    monkeypatch.setattr(pkb.cuda, "compile", lambda *args, **kwargs: None)
    module = load(name)
    for size_name in (size for size in problem.sizes if size.startswith("tiny")):
        size = problem.sizes[size_name]
        for index in range(6):
            arguments = []
            for rank in range(world_size):
                seeds = derive_seeds(b"secret", problem=name, size=size_name, index=index, rank=rank)
                draw = make_draw(
                    seeds, rank=rank, world_size=world_size, dtype="bf16", index=index, exact=False, device="cpu"
                )
                arguments.append(judge_side.inputs(size, draw))
            moves = RecordedMoves()
            monkeypatch.setattr(module, "MOVER", moves)
            results = [module.solution(*of_rank) for of_rank in arguments]
            moves.carry_out()
            expected = judge_side.oracle(arguments, world_size)
            assert all(agrees(*pair) for pair in zip(results, expected, strict=True))


def agrees(result: torch.Tensor, wanted: torch.Tensor | Expected) -> bool:
    if isinstance(wanted, torch.Tensor):
        return torch.equal(result, wanted)
    # A product comes before the move, and the oracle's is float64; elements of other places differ by far more.
    return torch.allclose(result.double(), wanted.value, rtol=0.02, atol=0.1)


def test_a_unit_divides_every_count() -> None:
    assert pkb.cuda.unit_of([48, 32]) == (16, "uint4")
    assert pkb.cuda.unit_of([48, 12, 0]) == (4, "unsigned int")
    assert pkb.cuda.unit_of([7])[0] == 1
