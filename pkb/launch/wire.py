"""Messages between the judge and a rank: a JSON header and raw bytes. Nothing a rank sends is ever unpickled."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pkb.problems._expected import Foreign, Outcome
from pkb.problems._tree import flat_bytes

_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"PKB1"
_MAX_HEADER_BYTES = 16 * 1024 * 1024
_GROWTH_BYTES = 16 * 1024 * 1024
_MAX_DEPTH = 16
_MAX_ITEMS = 4096
_MAX_TEXT_CHARS = 500
_DECODING_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError)

Header = dict[str, Any]


class ProtocolError(Exception):
    """What arrived is no message of ours."""


@dataclass(frozen=True)
class Message:
    """One received message."""

    header: Header
    payload: bytearray


def send(sock: socket.socket, header: Header, payloads: Sequence[memoryview] = ()) -> None:
    """Send one message; blocks until all of it is written."""
    text = json.dumps(header).encode()
    sock.sendall(_PREFIX.pack(_MAGIC, len(text), sum(p.nbytes for p in payloads)) + text)
    for payload in payloads:
        sock.sendall(payload)


class Reader:
    """Puts messages together from a socket, however they are cut up."""

    def __init__(self, sock: socket.socket, *, blocking: bool = False) -> None:
        self.max_payload_bytes = 0
        """Longest payload that the next message may have; the other side is not trusted to be modest."""
        self._sock = sock
        self._flags = 0 if blocking else socket.MSG_DONTWAIT
        self._parts = self._read()
        self._wanted: memoryview = next(self._parts)
        self._filled = 0

    def poll(self) -> Message | None:
        """The next message if it is complete, None if more has to arrive.

        Raises:
            EOFError: the other side closed the channel.
            ProtocolError: the bytes are no message.
        """
        while True:
            while self._filled < len(self._wanted):
                try:
                    count = self._sock.recv_into(self._wanted[self._filled :], 0, self._flags)
                except BlockingIOError:
                    return None
                except ConnectionResetError as error:
                    raise EOFError from error
                if count == 0:
                    raise EOFError
                self._filled += count
            # A payload cannot grow while somebody looks at it.
            self._wanted.release()
            step = next(self._parts)
            self._filled = 0
            if isinstance(step, Message):
                self._wanted = next(self._parts)
                return step
            self._wanted = step

    def _read(self) -> Iterator[Any]:
        """Yields a buffer to be filled, or a finished message."""
        while True:
            prefix = bytearray(_PREFIX.size)
            yield memoryview(prefix)
            magic, header_bytes, payload_bytes = _PREFIX.unpack(prefix)
            if magic != _MAGIC or header_bytes > _MAX_HEADER_BYTES:
                raise ProtocolError("not a message of the judge's protocol")
            if payload_bytes > self.max_payload_bytes:
                raise ProtocolError(f"a payload of {payload_bytes} bytes, expected at most {self.max_payload_bytes}")
            text = bytearray(header_bytes)
            yield memoryview(text)
            payload = bytearray()
            while len(payload) < payload_bytes:
                # Memory is taken as bytes arrive: what a prefix announces may never come.
                filled = len(payload)
                payload += bytes(min(payload_bytes - filled, max(_GROWTH_BYTES, filled)))
                yield memoryview(payload)[filled:]
            yield Message(_header(text), payload)


def _header(text: bytearray) -> Header:
    try:
        header = json.loads(bytes(text))
    except _DECODING_ERRORS as error:
        raise ProtocolError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ProtocolError("header is not an object")
    return header


def receive_blocking(sock: socket.socket) -> Header | None:
    """Next header on a blocking socket, used by ranks; None when the judge has closed it."""
    reader = Reader(sock, blocking=True)
    try:
        message = reader.poll()
    except EOFError:
        return None
    if message is None:
        raise ProtocolError("a blocking socket returned without a message")
    return message.header


def describe(value: Any, device: torch.device, max_bytes: int) -> tuple[Header, list[torch.Tensor]]:
    """A result as a JSON description and its tensors in order; what is no plain value becomes `foreign`.

    Args:
        value: what the candidate returned.
        device: where its tensors have to be, unless they are on the host.
        max_bytes: what its tensors may have together; one that exceeds it is described, not sent.
    """
    tensors: list[torch.Tensor] = []
    left_bytes, left_items = max_bytes, _MAX_ITEMS

    def walk(item: Any, depth: int = 0) -> Header:
        kind = type(item)
        if kind is torch.Tensor:
            return tensor(item)
        if kind in (tuple, list, dict):
            return container(item, depth)
        if kind is torch.Size:
            return {"kind": "size", "value": list(item)}
        if kind is Outcome:
            parts = [walk(x, depth + 1) for x in (item.result, *item.arguments.values())]
            return {"kind": "outcome", "keys": list(item.arguments), "items": parts}
        if item is None or kind is bool or (kind is int and item.bit_length() <= 64):
            return {"kind": "value", "value": item}
        if kind is str and len(item) <= _MAX_TEXT_CHARS:
            return {"kind": "value", "value": item}
        if kind is float:
            return {"kind": "float", "value": item.hex()}
        return _foreign(f"a {kind.__module__}.{kind.__qualname__}")

    def container(item: Any, depth: int) -> Header:
        nonlocal left_items
        left_items -= len(item)
        name = type(item).__name__
        if left_items < 0:
            return _foreign(f"a {name} of {len(item)}, more parts than any right result has")
        if depth == _MAX_DEPTH:
            return _foreign(f"a {name} nested {depth} levels deep")
        if not isinstance(item, dict):
            return {"kind": name, "items": [walk(x, depth + 1) for x in item]}
        if not all(type(key) is str and len(key) <= _MAX_TEXT_CHARS for key in item):
            return _foreign("a dict whose keys are not all short strings")
        return {"kind": "dict", "keys": list(item), "items": [walk(x, depth + 1) for x in item.values()]}

    def tensor(item: torch.Tensor) -> Header:
        nonlocal left_bytes
        # An alias without attributes: methods that the candidate gave this one object are never called.
        item = torch.Tensor.detach(item)
        problem = _unsendable(item, device, left_bytes)
        if problem:
            return _foreign(problem)
        tensors.append(item)
        left_bytes -= item.numel() * item.element_size()
        header = {"kind": "tensor", "dtype": str(item.dtype).removeprefix("torch."), "shape": list(item.shape)}
        return header if item.device.type == device.type else {**header, "device": item.device.type}

    return walk(value), tensors


def _foreign(text: str) -> Header:
    return {"kind": "foreign", "text": text[:_MAX_TEXT_CHARS]}


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a CPU tensor in row-major order."""
    if tensor.numel() == 0:
        return memoryview(b"")
    return flat_bytes(tensor.detach().resolve_conj().resolve_neg()).numpy().data


def rebuild(description: Header, payload: bytearray, offset: int = 0, device: str = "cpu") -> tuple[Any, int]:
    """The value that `describe` described, and the offset behind it in the payload.

    Args:
        description: what `describe` made of it.
        payload: bytes of its tensors; those on the CPU will be views of it.
        offset: where they begin.
        device: where tensors go, except those that were on the host and not where the arguments were.

    Raises:
        ProtocolError: description and payload do not fit.
    """
    try:
        return _rebuild(description, payload, offset, device)
    except _DECODING_ERRORS as error:
        raise ProtocolError(f"not a description of a result: {error}") from error


def _rebuild(description: Header, payload: bytearray, offset: int, device: str) -> tuple[Any, int]:
    kind = description.get("kind")
    if kind == "tensor":
        tensor, offset = _rebuild_tensor(description, payload, offset)
        return (tensor if description.get("device") == "cpu" else tensor.to(device)), offset
    if kind in ("tuple", "list", "dict", "outcome"):
        items = []
        for part in description["items"]:
            item, offset = _rebuild(part, payload, offset, device)
            items.append(item)
        if kind == "dict":
            return dict(zip(description["keys"], items, strict=True)), offset
        if kind == "outcome":
            return Outcome(items[0], dict(zip(description["keys"], items[1:], strict=True))), offset
        return (tuple(items) if kind == "tuple" else items), offset
    if kind == "size":
        return torch.Size(description["value"]), offset
    if kind == "value" and (description["value"] is None or type(description["value"]) in (bool, int, str)):
        return description["value"], offset
    if kind == "float":
        return float.fromhex(description["value"]), offset
    if kind == "foreign":
        return Foreign(str(description["text"])[:_MAX_TEXT_CHARS]), offset
    raise ProtocolError(f"unknown kind of value {str(kind)[:100]!r}")


def _rebuild_tensor(description: Header, payload: bytearray, offset: int) -> tuple[torch.Tensor, int]:
    dtype = getattr(torch, str(description["dtype"]), None)
    shape = [int(n) for n in description["shape"]]
    if not isinstance(dtype, torch.dtype) or str(dtype).startswith("torch.q") or any(n < 0 for n in shape):
        raise ProtocolError("a tensor of no known dtype or of a negative dimension")
    count = 1
    for n in shape:
        count *= n
    num_bytes = count * dtype.itemsize
    if offset + num_bytes > len(payload):
        raise ProtocolError(f"a tensor of {num_bytes} bytes exceeds the payload")
    if count == 0:
        return torch.empty(shape, dtype=dtype), offset
    raw = torch.frombuffer(payload, dtype=torch.uint8, count=num_bytes, offset=offset)
    if offset % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).reshape(shape), offset + num_bytes


def _unsendable(tensor: torch.Tensor, device: torch.device, max_bytes: int) -> str:
    """Why a tensor is not sent as it is; empty when it is."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested tensor" if tensor.is_nested else "quantized tensor" if tensor.is_quantized else "tensor"
        return f"a {kind} of layout {tensor.layout}"
    if tensor.device.type not in (device.type, "cpu"):
        return f"a tensor on {tensor.device}, while the arguments are on {device}"
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes > max_bytes:
        return f"a tensor of shape {list(tensor.shape)} ({num_bytes} bytes), larger than any right result"
    return ""
