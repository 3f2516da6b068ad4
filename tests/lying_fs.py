"""A file system of a process that lies: all is kept in memory, direct I/O is answered from there
and an fsync is acknowledged at once.

    python tests/lying_fs.py DIRECTORY    mounts it there, as root, until it is unmounted

It speaks to /dev/fuse itself (linux/fuse.h, protocol 7.31), as no library for that has to be there.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable, Iterator

_PAGES = 256
_WRITE = _PAGES * 4096
_FLAGS = 1 << 5 | 1 << 15 | 1 << 22  # large writes, asynchronous direct I/O, so many pages
_FATTR_SIZE = 1 << 3
_NO_ANSWER = (2, 36, 42)  # forget, interrupt, batch forget
_ACKNOWLEDGED = (18, 20, 25, 29, 30, 34, 38)  # release, fsync, flush; of directories; access, end


class RefusalError(Exception):
    """What the kernel is answered with in place of data."""


class Node:
    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.data = bytearray()
        self.names: dict[bytes, int] = {}


class Lying:
    def __init__(self) -> None:
        self.nodes = {1: Node(0o40755)}
        self.answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: lambda at, name: self.entry(self.child(at, name[:-1])),
            3: lambda at, _: self.attributes(at),
            4: self.set_attributes,
            9: lambda at, given: self.entry(self.make(at, given[8:-1], 0o40755)),
            10: self.remove,
            11: self.remove,
            12: lambda at, given: self.rename(at, given[:8], given[8:]),
            14: lambda *_: bytes(16),
            15: self.read,
            16: self.write,
            17: lambda *_: struct.pack("<5Q4I24x", *[1 << 20] * 5, 4096, 255, 4096, 0),
            26: lambda *_: struct.pack("<4I2H2I2HI28x", 7, 31, 0, _FLAGS, 64, 48, _WRITE, 1,
                                       _PAGES, 0, 0),
            27: lambda *_: bytes(16),
            28: self.list,
            35: lambda at, given: self.entry(self.make(at, given[16:-1], 0o100644)) + bytes(16),
            43: self.allocate,
            45: lambda at, given: self.rename(at, given[:8], given[16:]),
        }  # fmt: skip

    def child(self, at: int, name: bytes) -> int:
        if name not in self.nodes[at].names:
            raise RefusalError(errno.ENOENT)
        return self.nodes[at].names[name]

    def make(self, at: int, name: bytes, mode: int) -> int:
        number = max(self.nodes) + 1
        self.nodes[number] = Node(mode)
        self.nodes[at].names[name] = number
        return number

    def attributes(self, at: int) -> bytes:
        return bytes(16) + self.attribute(at)

    def attribute(self, at: int) -> bytes:
        size, mode = len(self.nodes[at].data), self.nodes[at].mode
        return struct.pack("<6Q10I", at, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0,
                           4096, 0)  # fmt: skip

    def entry(self, number: int) -> bytes:
        return struct.pack("<2Q24x", number, 1) + self.attribute(number)

    def set_attributes(self, at: int, given: bytes) -> bytes:
        valid, size = struct.unpack_from("<I12xQ", given)
        if valid & _FATTR_SIZE:
            self.resize(at, size)
        return self.attributes(at)

    def resize(self, at: int, size: int) -> None:
        data = self.nodes[at].data
        del data[size:]
        data.extend(bytes(size - len(data)))

    def allocate(self, at: int, given: bytes) -> bytes:
        offset, length = struct.unpack_from("<8xQQ", given)
        self.resize(at, max(len(self.nodes[at].data), offset + length))
        return b""

    def remove(self, at: int, name: bytes) -> bytes:
        del self.nodes[at].names[name[:-1]]
        return b""

    def rename(self, at: int, to: bytes, names: bytes) -> bytes:
        old, new, _ = names.split(b"\0")
        (there,) = struct.unpack("<Q", to)
        self.nodes[there].names[new] = self.nodes[at].names.pop(old)
        return b""

    def read(self, at: int, given: bytes) -> bytes:
        offset, size = struct.unpack_from("<8xQI", given)
        return bytes(self.nodes[at].data[offset : offset + size])

    def write(self, at: int, given: bytes) -> bytes:
        offset, size = struct.unpack_from("<8xQI", given)
        if len(self.nodes[at].data) < offset:
            self.resize(at, offset)
        self.nodes[at].data[offset : offset + size] = given[40 : 40 + size]
        return struct.pack("<I4x", size)

    def list(self, at: int, given: bytes) -> bytes:
        begin, room = struct.unpack_from("<8xQI", given)
        return b"".join(self.rows(at, begin, room))

    def rows(self, at: int, begin: int, room: int) -> Iterator[bytes]:
        for turn, (name, number) in enumerate(self.nodes[at].names.items(), start=1):
            padded = name + bytes(-len(name) % 8)
            room -= (24 + len(padded)) * (turn > begin)
            if turn > begin and room >= 0:
                kind = self.nodes[number].mode >> 12
                yield struct.pack("<2Q2I", number, turn, len(name), kind) + padded


def unknown(at: int, given: bytes) -> bytes:
    raise RefusalError(errno.ENOSYS)


def serve(device: int, lying: Lying) -> None:
    """Answer the kernel until the file system is unmounted. Removed files stay in memory."""
    while True:
        try:
            asked = os.read(device, _WRITE + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            raise
        operation, unique, at = struct.unpack_from("<4xIQQ", asked)
        if operation in _NO_ANSWER:
            continue
        failed, answer = 0, b""
        try:
            if operation not in _ACKNOWLEDGED:
                answer = lying.answers.get(operation, unknown)(at, asked[40:])
        except RefusalError as failure:
            failed = failure.args[0]
        os.write(device, struct.pack("<IiQ", 16 + len(answer), -failed, unique) + answer)


def main() -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"lying", sys.argv[1].encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "the file system cannot be mounted")
    serve(device, Lying())


if __name__ == "__main__":
    main()
