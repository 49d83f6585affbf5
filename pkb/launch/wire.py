"""Messages between the judge and a rank: a JSON header and raw bytes. Nothing a rank sends is ever unpickled."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pkb.problems._check import Foreign

_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"PKB1"
_MAX_HEADER_BYTES = 16 * 1024 * 1024
_MAX_PAYLOAD_BYTES = 64 * 1024**3

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
        self._sock = sock
        self._flags = 0 if blocking else socket.MSG_DONTWAIT
        self._parts = self._read()
        self._wanted = next(self._parts)
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
            if magic != _MAGIC or header_bytes > _MAX_HEADER_BYTES or payload_bytes > _MAX_PAYLOAD_BYTES:
                raise ProtocolError("not a message of the judge's protocol")
            text = bytearray(header_bytes)
            yield memoryview(text)
            payload = bytearray(payload_bytes)
            if payload_bytes:
                yield memoryview(payload)
            try:
                header = json.loads(bytes(text))
            except ValueError as error:
                raise ProtocolError(f"header is not JSON: {error}") from error
            if not isinstance(header, dict):
                raise ProtocolError("header is not an object")
            yield Message(header, payload)


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
        device: where its tensors have to be.
        max_bytes: a larger tensor is described, not sent.
    """
    tensors: list[torch.Tensor] = []

    def walk(item: Any) -> Header:
        kind = type(item)
        if kind is torch.Tensor:
            return tensor(item)
        if kind is tuple or kind is list:
            return {"kind": kind.__name__, "items": [walk(x) for x in item]}
        if kind is torch.Size:
            return {"kind": "size", "value": list(item)}
        if kind is dict and all(type(key) is str for key in item):
            return {"kind": "dict", "keys": list(item), "items": [walk(x) for x in item.values()]}
        if item is None or kind in (bool, int, str):
            return {"kind": "value", "value": item}
        if kind is float:
            return {"kind": "float", "value": item.hex()}
        return {"kind": "foreign", "text": f"a {kind.__module__}.{kind.__qualname__}"}

    def tensor(item: torch.Tensor) -> Header:
        problem = _unsendable(item, device, max_bytes)
        if problem:
            return {"kind": "foreign", "text": problem}
        tensors.append(item)
        return {"kind": "tensor", "dtype": str(item.dtype).removeprefix("torch."), "shape": list(item.shape)}

    return walk(value), tensors


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a CPU tensor in row-major order."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data


def rebuild(description: Header, payload: bytearray, offset: int = 0) -> tuple[Any, int]:
    """The value that `describe` described, its tensors being views of the payload; and the offset behind it.

    Raises:
        ProtocolError: description and payload do not fit.
    """
    try:
        return _rebuild(description, payload, offset)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a description of a result: {error}") from error


def _rebuild(description: Header, payload: bytearray, offset: int) -> tuple[Any, int]:
    kind = description.get("kind")
    if kind == "tensor":
        return _rebuild_tensor(description, payload, offset)
    if kind in ("tuple", "list", "dict"):
        items = []
        for part in description["items"]:
            item, offset = _rebuild(part, payload, offset)
            items.append(item)
        if kind == "dict":
            return dict(zip(description["keys"], items, strict=True)), offset
        return (tuple(items) if kind == "tuple" else items), offset
    if kind == "size":
        return torch.Size(description["value"]), offset
    if kind == "value":
        return description["value"], offset
    if kind == "float":
        return float.fromhex(description["value"]), offset
    if kind == "foreign":
        return Foreign(str(description["text"])[:500]), offset
    raise ProtocolError(f"unknown kind of value {kind!r}")


def _rebuild_tensor(description: Header, payload: bytearray, offset: int) -> tuple[torch.Tensor, int]:
    dtype = getattr(torch, str(description["dtype"]), None)
    shape = [int(n) for n in description["shape"]]
    if not isinstance(dtype, torch.dtype) or any(n < 0 for n in shape):
        raise ProtocolError(f"not a tensor: {description}")
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
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.device.type != device.type:
        return f"a tensor on {tensor.device}, while the arguments are on {device}"
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes > max_bytes:
        return f"a tensor of shape {list(tensor.shape)} ({num_bytes} bytes), larger than any right result"
    return ""
