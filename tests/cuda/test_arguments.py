"""Python values to a kernel's parameters: layout, widths, and what is said about a misfit."""

import ctypes
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import pkb.cuda
from pkb.cuda.arguments import MAX_RANKS, ParameterBlock


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_int32), ("second", ctypes.c_int32))


def pointers_of(block: ParameterBlock, count: int) -> list[int]:
    return list((ctypes.c_void_p * count).from_address(block.address))


def test_values_land_at_the_offsets_of_the_kernel() -> None:
    block = ParameterBlock("k", [(0, 8), (8, 4), (12, 4), (16, 8)])
    block.pack((-5, np.int32(-7), 0.5, np.uint64(2**64 - 1)))
    assert block.packed()[:24] == struct.pack("<qifQ", -5, -7, 0.5, 2**64 - 1)


def test_gaps_between_parameters_are_kept() -> None:
    block = ParameterBlock("k", [(0, 1), (8, 8), (16, 2), (20, 4)])
    block.pack((True, 3, np.int16(-2), 1.0))
    assert block.packed()[:24] == struct.pack("<?7xqh2xf", True, 3, -2, 1.0)


def test_address_is_that_of_one_pointer_a_parameter() -> None:
    block = ParameterBlock("k", [(0, 8), (8, 4)])
    block.pack((11, np.int32(12)))
    first, second = pointers_of(block, 2)
    assert ctypes.c_int64.from_address(first).value == 11
    assert ctypes.c_int32.from_address(second).value == 12


def test_structures_and_arrays_go_by_value() -> None:
    block = ParameterBlock("k", [(0, 64), (64, 8), (72, 4)])
    block.pack((pkb.cuda.peers([1, 2, 3]), Pair(4, 5), ctypes.c_uint32(6)))
    assert block.packed()[:76] == struct.pack("<8QiiI", 1, 2, 3, 0, 0, 0, 0, 0, 4, 5, 6)


def test_same_block_takes_other_values_and_other_types() -> None:
    block = ParameterBlock("k", [(0, 8)])
    for value in (1, 2, np.int64(3), ctypes.c_int64(4)):
        block.pack((value,))
        assert block.packed()[:8] == struct.pack("<q", int(getattr(value, "value", value)))


def test_kernel_without_parameters() -> None:
    ParameterBlock("k", []).pack(())


def test_wrong_number_of_arguments() -> None:
    with pytest.raises(TypeError, match="k takes 2 arguments, got 1"):
        ParameterBlock("k", [(0, 8), (8, 8)]).pack((1,))


def test_int_for_a_32_bit_parameter_says_what_to_pass() -> None:
    with pytest.raises(TypeError, match=r"argument 1 is int \(8 bytes\).* 4 bytes\. Pass numpy\.int32"):
        ParameterBlock("k", [(0, 8), (8, 4)]).pack((1, 2))


def test_too_few_peers_by_value_say_what_to_pass() -> None:
    with pytest.raises(TypeError, match="ctypes structure or array of 64 bytes"):
        ParameterBlock("k", [(0, 64)]).pack((7,))


@pytest.mark.parametrize(
    "value",
    [
        np.bool_(True),
        np.int8(-1),
        np.uint8(255),
        np.int16(-2),
        np.uint16(65535),
        np.int32(-3),
        np.uint32(2**32 - 1),
        np.longlong(-4),
        np.uint64(2**64 - 1),
        np.float16(1.5),
        np.float32(0.1),
        np.float64(0.1),
    ],
)
def test_numpy_scalars_keep_their_bytes(value: np.generic) -> None:
    block = ParameterBlock("k", [(0, value.itemsize)])
    block.pack((value,))
    assert block.packed()[: value.itemsize] == value.tobytes()


@pytest.mark.parametrize(("value", "size", "instead"), [(2**63, 8, "uint64"), (1e300, 4, "float64")])
def test_number_that_does_not_fit_says_what_to_pass(value: float, size: int, instead: str) -> None:
    with pytest.raises(OverflowError, match=rf"numpy\.{instead}"):
        ParameterBlock("k", [(0, size)]).pack((value,))


def test_tensor_on_the_cpu_is_refused() -> None:
    with pytest.raises(TypeError, match="tensor on cpu"):
        ParameterBlock("k", [(0, 8)]).pack((torch.zeros(3),))


@pytest.mark.parametrize("value", [None, "text", [1, 2], (1, 2)])
def test_types_without_a_width_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=f"argument 0 is a {type(value).__name__}"):
        ParameterBlock("k", [(0, 8)]).pack((value,))


def test_more_peers_than_the_header_holds() -> None:
    with pytest.raises(ValueError, match="9 peer pointers"):
        pkb.cuda.peers(range(9))


def test_header_holds_as_many_peers() -> None:
    header = Path(pkb.cuda.__file__).with_name("memory.cuh").read_text()
    found = re.search(r"kMaxRanks = (\d+)", header)
    assert found is not None and int(found[1]) == MAX_RANKS
