"""Wrong outputs that can be made for any problem, and that its check has to refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from problem_cases import (
    Trial,
    compare_ranks,
    expected_of,
    inputs_of,
    is_number,
    judgeside,
    leaves,
    map_leaves,
    oracle_if_valid,
    right_outputs,
    rounded,
    truths,
)

from pkb.problems._check import Expected, Outcome
from pkb.problems._tree import map_tensors, tensors

Outputs = list[Any]

TF32_TOLERANCE = 2e-3
"""A tolerance in fp32 from which on TF32 tensor cores are allowed."""

BF16_ROUNDED = 1.5e-3
"""Below a tolerance in fp32 of this, rounding to bf16 is refused; above it only cutting bits off is."""

FLOAT8_ROUNDED = 2e-2
"""The same for e4m3, whose rounding costs 2.6e-2."""

FEW = 16
"""Below so many elements a coarse rounding may happen to be fine."""


def wrong_outputs(trial: Trial) -> Iterator[tuple[str, Outputs]]:
    """(name, outputs of all ranks); some may by accident be the right ones."""
    yield from _not_computed(trial)
    yield from _communication_left_out(trial)
    yield from _one_element(trial)
    yield from _one_row(trial)
    yield from _wrong_form(trial)
    yield from _low_precision(trial)


def near_misses(trial: Trial) -> Iterator[tuple[str, Outputs]]:
    """The problem's own wrong outputs, in the dtype in which they would be returned."""
    for name, outputs in judgeside(trial.case.problem_id).near_misses(expected_of(trial), inputs_of(trial)):
        yield name, [rounded(output, trial.case.dtype) for output in outputs]


def _not_computed(trial: Trial) -> Iterator[tuple[str, Outputs]]:
    right = right_outputs(trial)
    yield "zeros", _map_tensors(right, torch.zeros_like)
    yield "mean of the output", _map_tensors(right, _mean)
    yield "another draw's answer", right_outputs(trial.another())
    num_arguments = min(len(arguments) for arguments in inputs_of(trial))
    for i in range(num_arguments):
        own = [arguments[i] for arguments in inputs_of(trial)]
        if all(isinstance(tensor, torch.Tensor) for tensor in own):
            outputs = [_where_it_fits(output, t) for output, t in zip(right, own, strict=True)]
            yield f"argument {i} as it was", outputs
    if in_place := trial.case.problem.positions(trial.case.problem.in_place):
        yield (
            "arguments left as they were",
            [
                Outcome(output.result, {name: arguments[i] for name, i in in_place.items()})
                for output, arguments in zip(right, inputs_of(trial), strict=True)
            ],
        )


def _communication_left_out(trial: Trial) -> Iterator[tuple[str, Outputs]]:
    world_size, dtype = trial.case.world_size, trial.case.dtype
    if world_size == 1:
        return
    ranks = range(world_size)
    changed = [oracle_if_valid(trial, change_inputs(trial, torch.zeros_like, _all_but(trial, r))) for r in ranks]
    alone = [answers[r] for r, answers in enumerate(changed) if answers is not None]
    if len(alone) == world_size:
        yield "peers' inputs taken for zeros", [rounded(output, dtype) for output in alone]
    right = right_outputs(trial)
    yield "ranks rotated by one", right[1:] + right[:1]
    for rank in (0, world_size - 1):
        for name, change in (("zeros", torch.zeros_like), ("twice what they are", _double)):
            answers = oracle_if_valid(trial, change_inputs(trial, change, {rank}))
            if answers is not None:
                yield f"rank {rank}'s inputs taken for {name}", [rounded(output, dtype) for output in answers]


def _one_element(trial: Trial) -> Iterator[tuple[str, Outputs]]:
    for name, change in (("NaN in one element", _nan), ("last element of the last row wrong", _off)):
        for rank, want in enumerate(expected_of(trial)):
            outputs = right_outputs(trial)
            outputs[rank] = _change_last_tensor(outputs[rank], want, change)
            yield f"{name} on rank {rank}", outputs


def _one_row(trial: Trial) -> Iterator[tuple[str, Outputs]]:
    """Rows at the edges of what would be the first and the last rank's shard, unwritten."""
    world_size = trial.case.world_size
    for rank in {0, world_size - 1}:
        for name, place in (("first", lambda rows: max(rows // world_size, 1) - 1), ("last", lambda rows: rows - 1)):
            outputs = right_outputs(trial)
            change = functools.partial(_clear_row, place=place)
            outputs[rank] = _change_last_tensor(outputs[rank], expected_of(trial)[rank], change)
            yield f"row at the edge of the {name} shard unwritten on rank {rank}", outputs


def _wrong_form(trial: Trial) -> Iterator[tuple[str, Outputs]]:
    right = right_outputs(trial)
    yield "wrong dtype", _map_tensors(right, _other_dtype)
    yield "one dimension more", _map_tensors(right, lambda tensor: tensor.unsqueeze(0))
    yield "one dimension for all", _map_tensors(right, lambda tensor: tensor.flatten())
    yield "one more thing returned", [_with_none(output) for output in right]


def _low_precision(trial: Trial) -> Iterator[tuple[str, Outputs]]:
    """Formats of fewer bits, as far as the tolerance is so small and the output so large that they must show."""
    if max((truth.numel() for truth in truths(expected_of(trial))), default=0) < FEW:
        return
    found = compare_ranks(trial, right_outputs(trial))
    tolerance = max((c.tolerance for c in found if c.tolerance is not None), default=0.0)
    if tolerance <= FLOAT8_ROUNDED:
        yield "output through float8", _map_tensors(right_outputs(trial), _if_many(through_float8))
        if trial.case.dtype == "bf16":
            yield from _computed_through(trial, "float8 operands and output", through_float8)
    if trial.case.dtype == "fp32":
        coarsen = _through_bf16 if tolerance < BF16_ROUNDED else _cut_to_bf16
        yield from _computed_through(trial, "bf16 operands and output", coarsen)
        if tolerance < TF32_TOLERANCE:
            yield from _computed_through(trial, "TF32 operands and output", _through_tf32)


def change_inputs(
    trial: Trial, change: Callable[[torch.Tensor], torch.Tensor], ranks: set[int]
) -> list[tuple[Any, ...]]:
    """Inputs with the numbers of some ranks changed; all tensors where none holds numbers."""
    only_numbers = any(map(is_number, tensors(inputs_of(trial))))

    def change_tensor(tensor: torch.Tensor) -> torch.Tensor:
        return change(tensor) if is_number(tensor) or not only_numbers else tensor

    return [
        map_tensors(arguments, change_tensor) if rank in ranks else arguments
        for rank, arguments in enumerate(inputs_of(trial))
    ]


def through_float8(tensor: torch.Tensor) -> torch.Tensor:
    """Rounded to e4m3 with the best scale for the whole tensor."""
    if tensor.dtype.itemsize == 1:
        return tensor
    if tensor.is_complex():
        return torch.view_as_complex(through_float8(torch.view_as_real(tensor.resolve_conj())))
    scale = tensor.abs().max().float().clamp_min(1e-30) / 448.0
    codes = (tensor.float() / scale).to(torch.float8_e4m3fn)
    return (codes.float() * scale).to(tensor.dtype)


def _through_bf16(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return torch.view_as_complex(_through_bf16(torch.view_as_real(tensor.resolve_conj())))
    return tensor.bfloat16().to(tensor.dtype)


def _cut_to_bf16(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype != torch.float32:
        return _through_bf16(tensor)
    return (tensor.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32)


def _through_tf32(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _computed_through(
    trial: Trial, name: str, coarsen: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[tuple[str, Outputs]]:
    """Operands made coarse, exact arithmetic, and the output made coarse where it has many elements."""
    everyone = set(range(trial.case.world_size))
    coarse = oracle_if_valid(trial, change_inputs(trial, _if_many(coarsen), everyone))
    if coarse is not None:
        outputs = [rounded(output, trial.case.dtype) for output in coarse]
        yield name, _map_tensors(outputs, _if_many(coarsen))


def _if_many(coarsen: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        return coarsen(tensor) if is_number(tensor) and tensor.numel() >= FEW else tensor

    return change


def _all_but(trial: Trial, rank: int) -> set[int]:
    return set(range(trial.case.world_size)) - {rank}


def _double(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bool:
        return tensor
    return (tensor.float() * 2).to(tensor.dtype) if _is_float8(tensor) else tensor * 2


def _is_float8(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize == 1


def _with_none(output: Any) -> Any:
    return Outcome((output.result, None), output.arguments) if isinstance(output, Outcome) else (output, None)


def _map_tensors(outputs: Outputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Outputs:
    return [
        map_leaves(output, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf) for output in outputs
    ]


def _where_it_fits(output: Any, tensor: torch.Tensor) -> Any:
    def change(leaf: Any) -> Any:
        is_fit = isinstance(leaf, torch.Tensor) and (leaf.dtype, leaf.shape) == (tensor.dtype, tensor.shape)
        return tensor if is_fit else leaf

    return map_leaves(output, change)


def _change_last_tensor(output: Any, want: Any, change: Callable[[torch.Tensor], None]) -> Any:
    """The output with the last tensor of those changed that are specified and have elements."""
    result = map_leaves(output, lambda leaf: _copy(leaf) if isinstance(leaf, torch.Tensor) else leaf)
    judged = [
        leaf
        for leaf, truth in zip(leaves(result), leaves(want), strict=True)
        if isinstance(truth, (torch.Tensor, Expected)) and leaf.numel() > 0
    ]
    if judged:
        change(judged[-1])
    return result


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _nan(tensor: torch.Tensor) -> None:
    if is_number(tensor):
        tensor.view(-1)[tensor.numel() // 2] = float("nan")


def _off(tensor: torch.Tensor) -> None:
    last = tensor.view(-1)[-1:]
    if tensor.dtype == torch.bool:
        last.logical_not_()
    elif _is_float8(tensor):
        last.view(torch.uint8).bitwise_xor_(0x40)
    elif is_number(tensor):
        rms = tensor.abs().double().square().mean().sqrt()
        last += float(rms) if rms > 0 else 1.0
    else:
        last += 1


def _clear_row(tensor: torch.Tensor, place: Callable[[int], int]) -> None:
    if tensor.dim() >= 2 and is_number(tensor):
        tensor[place(len(tensor))] = 0.0


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    """Every element the mean of all; whatever holds no numbers stays."""
    if not is_number(tensor) or tensor.numel() == 0:
        return tensor
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return wide.mean().to(tensor.dtype).expand_as(tensor)


def _other_dtype(tensor: torch.Tensor) -> torch.Tensor:
    others = {
        torch.bfloat16: torch.float32,
        torch.int64: torch.int32,
        torch.bool: torch.uint8,
        torch.complex64: torch.complex128,
    }
    return tensor.to(others.get(tensor.dtype, torch.bfloat16 if tensor.is_floating_point() else torch.int64))
