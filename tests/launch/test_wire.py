"""Messages between the judge and its ranks: whatever arrives is a message or a ProtocolError."""

from __future__ import annotations

import collections
import json
import math
import re
import socket
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pkb.launch import wire
from pkb.launch.wire import ProtocolError
from pkb.problems._expected import Foreign, Outcome

CPU = torch.device("cpu")
MAX_BYTES = 1 << 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def prefix(header_bytes: int, payload_bytes: int, magic: bytes = b"PKB1") -> bytes:
    return struct.pack("<4sIQ", magic, header_bytes, payload_bytes)


def encoded(header: dict[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return prefix(len(text), len(payload)) + text + payload


def reader_of(sock: socket.socket, max_payload_bytes: int = MAX_BYTES) -> wire.Reader:
    reader = wire.Reader(sock)
    reader.max_payload_bytes = max_payload_bytes
    return reader


def test_a_message_cut_anywhere_is_put_together(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    message = encoded({"done": "x", "n": 3}, b"payload")
    reader = reader_of(right)
    for cut in range(1, len(message)):
        left.sendall(message[:cut])
        assert reader.poll() is None
        left.sendall(message[cut:])
        got = reader.poll()
        assert got is not None
        assert got.header == {"done": "x", "n": 3}
        assert bytes(got.payload) == b"payload"


def test_messages_that_arrive_byte_by_byte_and_back_to_back(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    reader = reader_of(right)
    got = []
    for byte in encoded({"a": 1}) + encoded({}, b"\0\1") + encoded({"c": None}):
        left.sendall(bytes([byte]))
        message = reader.poll()
        if message is not None:
            got.append((message.header, bytes(message.payload)))
    assert got == [({"a": 1}, b""), ({}, b"\0\1"), ({"c": None}, b"")]
    left.sendall(encoded({"d": 1}) + encoded({"e": 2}))
    first, second = reader.poll(), reader.poll()
    assert first is not None and second is not None
    assert (first.header, second.header) == ({"d": 1}, {"e": 2})
    assert reader.poll() is None


def test_send_is_what_the_reader_reads(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    wire.send(left, {"x": [1, 2]}, [memoryview(b"ab"), memoryview(b""), memoryview(b"cd")])
    message = reader_of(right).poll()
    assert message is not None
    assert message.header == {"x": [1, 2]}
    assert bytes(message.payload) == b"abcd"


def test_a_payload_of_many_growth_steps(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_GROWTH_BYTES", 3)
    left, right = pair
    left.sendall(encoded({}, bytes(range(100))))
    message = reader_of(right).poll()
    assert message is not None
    assert bytes(message.payload) == bytes(range(100))


@pytest.mark.parametrize("where", [0, 5, 16, 20])
def test_closing_in_a_message_is_the_end(pair: tuple[socket.socket, socket.socket], where: int) -> None:
    left, right = pair
    left.sendall(encoded({"long": "enough"})[:where])
    left.close()
    with pytest.raises(EOFError):
        reader_of(right).poll()


@pytest.mark.parametrize(
    "garbage",
    [
        b"not a message at all, but long enough",
        prefix(2, 0, magic=b"PKB2") + b"{}",
        prefix(1 << 25, 0),
        prefix((1 << 32) - 1, 0),
        prefix(2, MAX_BYTES + 1) + b"{}",
        prefix(2, (1 << 64) - 1) + b"{}",
        prefix(3, 0) + b"{]}",
        prefix(2, 0) + b"\xff\xfe",
        prefix(2, 0) + b"[]",
        prefix(4, 0) + b"null",
        prefix(0, 0),
        prefix(200_000, 0) + b"[" * 200_000,
        encoded({})[:-2] + b"  ",
    ],
    ids=lambda g: repr(g[:24]),
)
def test_garbage_is_a_protocol_error(pair: tuple[socket.socket, socket.socket], garbage: bytes) -> None:
    left, right = pair
    left.sendall(garbage)
    with pytest.raises(ProtocolError):
        reader_of(right).poll()


def test_an_announced_payload_takes_no_memory_before_it_arrives(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    left.sendall(prefix(2, 1 << 44) + b"{}")
    assert reader_of(right, max_payload_bytes=1 << 45).poll() is None


def test_receive_blocking(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    wire.send(left, {"kind": "x"})
    left.close()
    assert wire.receive_blocking(right) == {"kind": "x"}
    assert wire.receive_blocking(right) is None


def round_trip(value: Any) -> Any:
    description, tensors = wire.describe(value, CPU, MAX_BYTES)
    payload = bytearray().join(bytes(wire.raw_bytes(t)) for t in tensors)
    got, offset = wire.rebuild(json.loads(json.dumps(description)), payload)
    assert offset == len(payload)
    return got


def all_dtypes() -> list[torch.dtype]:
    """Every dtype whose elements are whole bytes that a plain tensor can hold."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    names = re.compile(r"torch\.(bool|u?int(8|16|32|64)|b?float\w+|complex\d+)")
    return sorted((dtype for dtype in found if names.fullmatch(str(dtype))), key=str)


@pytest.mark.parametrize("dtype", all_dtypes(), ids=str)
def test_every_dtype_comes_back_bit_by_bit(dtype: torch.dtype) -> None:
    raw = torch.arange(2 * 3 * dtype.itemsize, dtype=torch.uint8)
    sent = (raw % 2).view(torch.bool).view(2, -1) if dtype == torch.bool else raw.view(dtype).view(2, 3)
    got = round_trip(sent)
    assert (got.dtype, got.shape) == (dtype, sent.shape)
    assert bytes(wire.raw_bytes(got)) == bytes(wire.raw_bytes(sent))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8, torch.complex64], ids=str)
def test_a_single_element_may_have_any_stride(dtype: torch.dtype) -> None:
    column = torch.arange(15).to(dtype).view(3, 5)[:, 4]
    for sent in (column, column[1:2], column[1:2].unsqueeze(0), column[1]):
        assert torch.equal(round_trip(sent), sent)


SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1.5])


@pytest.mark.parametrize(
    "tensor",
    [
        SPECIAL,
        SPECIAL.bfloat16(),
        SPECIAL.to(torch.complex64).conj(),
        torch.view_as_complex(torch.arange(6.0).view(3, 2)).conj().imag,
        torch.tensor([True, False]),
        torch.tensor(3.5),
        torch.empty(0),
        torch.empty(2, 0, 3, dtype=torch.bfloat16),
        torch.arange(12).view(3, 4).t(),
        torch.arange(12).view(3, 4)[:, 1::2],
        torch.tensor(7).expand(4, 5),
        torch.arange(10)[3:7],
        torch.ones(3, requires_grad=True) * 2,
    ],
    ids=lambda t: f"{t.dtype}-{list(t.shape)}",
)
def test_tensors_come_back(tensor: torch.Tensor) -> None:
    got = round_trip(tensor)
    assert got.dtype == tensor.dtype
    torch.testing.assert_close(got, tensor.detach().resolve_conj(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -(2**63), 1.5, -0.0, math.inf, 5e-324, "text", "", (), [], {},
        (1, [2, (3, None)], {"a": [4.5], "b": {}}), torch.Size([2, 0, 3]), torch.Size([]),
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values_come_back(value: Any) -> None:
    got = round_trip(value)
    assert got == value
    assert type(got) is type(value)


def test_nan_comes_back() -> None:
    assert math.isnan(round_trip(math.nan))


def test_tensors_in_containers_keep_their_places() -> None:
    a, b, c = torch.ones(3, dtype=torch.int8), torch.full((2,), 2.5, dtype=torch.float64), torch.tensor(True)
    got = round_trip({"x": (a, [b]), "y": c})
    assert torch.equal(got["x"][0], a)
    assert torch.equal(got["x"][1][0], b)
    assert torch.equal(got["y"], c)


class Tagged(torch.Tensor):
    """A subclass may lie in every method."""


def endless() -> list[Any]:
    inner: list[Any] = []
    inner += [inner, inner]
    return inner


class Point(tuple[int, int]):
    """Tuple by inheritance only."""


def test_outcome_keeps_result_and_arguments_apart() -> None:
    value = Outcome((torch.ones(2), None), {"grads": [torch.zeros(3), None]})
    description, tensors = wire.describe(value, CPU, 1000)
    payload = bytearray(b"".join(bytes(wire.raw_bytes(t)) for t in tensors))
    again, offset = wire.rebuild(json.loads(json.dumps(description)), payload)
    assert isinstance(again, Outcome) and offset == len(payload)
    assert torch.equal(again.result[0], torch.ones(2)) and again.result[1] is None
    assert torch.equal(again.arguments["grads"][0], torch.zeros(3)) and again.arguments["grads"][1] is None


def test_host_tensor_stays_on_the_host_where_arguments_are_elsewhere() -> None:
    description, tensors = wire.describe(torch.ones(2), torch.device("cuda:0"), 1000)
    assert description["device"] == "cpu"
    payload = bytearray(bytes(wire.raw_bytes(tensors[0])))
    assert wire.rebuild(description, payload, device="meta")[0].device.type == "cpu"
    del description["device"]
    assert wire.rebuild(description, payload, device="meta")[0].device.type == "meta"


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (torch.ones(2).as_subclass(Tagged), "Tagged"),
        (torch.nn.Parameter(torch.ones(2)), "Parameter"),
        (torch.empty(2, device="meta"), "on meta"),
        (torch.eye(2).to_sparse(), "sparse_coo"),
        (quantized(), "quantized"),
        (torch.ones(1).expand(1 << 40), "larger than any right result"),
        (torch.ones(2).numpy(), "numpy.ndarray"),
        ((n for n in range(2)), "generator"),
        (Point((1, 2)), "Point"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        ({1: 2}, "keys"),
        ({"k" * 10_000: 2}, "keys"),
        (b"bytes", "bytes"),
        (2**70, "int"),
        ("x" * 10_000, "str"),
        ([None] * 10_000, "list of 10000"),
        (1j, "complex"),
        (torch.float32, "dtype"),
        (object(), "object"),
    ],
    ids=lambda v: v if isinstance(v, str) and len(v) < 40 else "",
)
def test_what_is_no_plain_value_becomes_foreign(value: Any, word: str) -> None:
    got = round_trip(value)
    assert isinstance(got, Foreign)
    assert word in got.description


def test_a_list_that_holds_itself_ends() -> None:
    assert isinstance(round_trip(endless()), list)


def test_tensors_together_stay_below_the_bound() -> None:
    part = torch.zeros(MAX_BYTES // 2, dtype=torch.uint8)
    first, second, third = round_trip([part, part, part])
    assert first.shape == second.shape == part.shape
    assert isinstance(third, Foreign)


TENSOR = {"kind": "tensor", "dtype": "float32", "shape": [2]}


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"kind": "unheard of"},
        {"kind": ["tensor"]},
        {**TENSOR, "dtype": "nn"},
        {**TENSOR, "dtype": "nonsense"},
        {**TENSOR, "dtype": "qint8"},
        {**TENSOR, "shape": [-1]},
        {**TENSOR, "shape": [3]},
        {**TENSOR, "shape": [10**30]},
        {**TENSOR, "shape": [0, 10**30]},
        {**TENSOR, "shape": [math.inf]},
        {**TENSOR, "shape": "ab"},
        {**TENSOR, "shape": None},
        {"kind": "tensor", "shape": [1]},
        {"kind": "tuple"},
        {"kind": "tuple", "items": 3},
        {"kind": "list", "items": [3]},
        {"kind": "dict", "keys": ["a", "b"], "items": []},
        {"kind": "dict", "keys": [[]], "items": [{"kind": "value", "value": 1}]},
        {"kind": "size", "value": ["a"]},
        {"kind": "size", "value": 3},
        {"kind": "value"},
        {"kind": "value", "value": {"a": 1}},
        {"kind": "value", "value": 1.5},
        {"kind": "float", "value": "x"},
        {"kind": "float", "value": 3},
        {"kind": "float", "value": "0x1p99999"},
        {"kind": "foreign"},
        {"kind": "outcome", "keys": [], "items": []},
        {"kind": "outcome", "keys": ["a"], "items": [{"kind": "value", "value": 1}]},
    ],
    ids=str,
)
def test_malformed_descriptions_are_protocol_errors(description: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        wire.rebuild(description, bytearray(8))


def test_a_description_nested_without_end_is_a_protocol_error() -> None:
    description: dict[str, Any] = {"kind": "value", "value": None}
    for _ in range(100_000):
        description = {"kind": "list", "items": [description]}
    with pytest.raises(ProtocolError):
        wire.rebuild(description, bytearray())
