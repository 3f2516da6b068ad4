"""MessagePack, as much as LMCache's traces need: one value from bytes, and bytes from one value.

Written here since the format is small (msgpack/msgpack, spec.md) and no other part needs it.
Extension types are refused. What a text may do to the reader is bounded: the depth of nesting by
`MAX_DEPTH`, and no length is believed before its bytes are there.
"""

import struct
from typing import Any

MAX_DEPTH = 32

_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS: dict[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # tag -> bytes of the length
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def unpack(data: bytes) -> Any:
    """The one value that `data` is. Raises `ValueError` for anything else."""
    reader = _Reader(data)
    try:
        value = reader.value(MAX_DEPTH)
    except (struct.error, IndexError):
        raise ValueError("the value is cut") from None
    if not reader.at_end:
        raise ValueError("there is more than one value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def value(self, depth: int) -> Any:
        tag = self._data[self._at]
        self._at += 1
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        if tag < 0x80 or tag >= 0xE0:
            return tag if tag < 0x80 else tag - 0x100
        return self._sized(tag, depth)

    def _sized(self, tag: int, depth: int) -> Any:
        if 0xA0 <= tag < 0xC0:
            return self._take(tag & 0x1F).decode()
        if tag in _TEXTS:
            return self._take(self._length(_TEXTS[tag])).decode()
        if tag in _BYTES:
            return self._take(self._length(_BYTES[tag]))
        if not depth:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if 0x90 <= tag < 0xA0 or tag in _LISTS:
            count = tag & 0x0F if tag < 0xA0 else self._length(_LISTS[tag])
            return [self.value(depth - 1) for _ in range(count)]
        if 0x80 <= tag < 0x90 or tag in _MAPS:
            count = tag & 0x0F if tag < 0x90 else self._length(_MAPS[tag])
            return dict(self._pair(depth - 1) for _ in range(count))
        raise ValueError(f"type 0x{tag:02x} is not read")

    def _pair(self, depth: int) -> tuple[str | int, Any]:
        key = self.value(0)
        if not isinstance(key, str | int):
            raise ValueError("a key is neither text nor a number")
        return key, self.value(depth)

    def _number(self, layout: str) -> int | float:
        (number,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return number  # type: ignore[no-any-return]

    def _length(self, size: int) -> int:
        return int.from_bytes(self._take(size))

    def _take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise ValueError("the value is cut")
        self._at += count
        return part


def pack(value: Any) -> bytes:
    """`value` of None, booleans, numbers, text, bytes, lists and dictionaries, as MessagePack."""
    if value is None or isinstance(value, bool):
        return bytes([{None: 0xC0, False: 0xC2, True: 0xC3}[value]])
    if isinstance(value, int):
        return bytes([value]) if 0 <= value < 0x80 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        short = bytes([0xA0 | len(text)]) if len(text) < 32 else None
        return (short or b"\xdb" + struct.pack(">I", len(text))) + text
    if isinstance(value, dict):
        pairs = b"".join(pack(part) for pair in value.items() for part in pair)
        return b"\xdf" + struct.pack(">I", len(value)) + pairs
    items = b"".join(pack(item) for item in value)
    return b"\xdd" + struct.pack(">I", len(value)) + items
