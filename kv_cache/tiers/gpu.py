"""A GPU as a tier: device buffers through torch or CuPy, with the benchmark's own buffer pool
registered as pinned memory, so that copies run at the link's speed without a staging copy.

Both libraries are extras and are imported only here; without either, or without a CUDA device,
`find_devices` says why, and the caller uses a RAM buffer instead of the GPU and marks it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from kv_cache.core.errors import PlaceError
from kv_cache.core.kinds import Tier
from kv_cache.core.units import human_bytes
from kv_cache.installing import install_hint
from kv_cache.tiers.base import Capability
from kv_cache.tiers.buffers import Bytes
from kv_cache.tiers.memory import ArenaStore


class Device(Protocol):
    """One accelerator's memory. `upload` and `download` return when the copy is complete, and may
    be called by several threads at once."""

    name: str

    def free_bytes(self) -> int: ...

    def allocate(self, nbytes: int) -> None: ...

    def pin(self, memory: Bytes) -> None: ...

    def unpin(self, memory: Bytes) -> None: ...

    def upload(self, at: int, data: memoryview) -> None: ...

    def download(self, at: int, into: memoryview) -> None: ...

    def release(self) -> None: ...


class TorchDevice:
    """Memory of `torch.device(kind, index)`; `cpu` works too, which is how it is tested."""

    def __init__(self, kind: str, index: int) -> None:
        import torch

        self._torch: Any = torch
        self._device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
        self._cuda = kind == "cuda"
        self.name = torch.cuda.get_device_name(index) if self._cuda else kind
        self._memory: Any = None
        self._streams = threading.local()

    def free_bytes(self) -> int:
        if not self._cuda:
            return 1 << 62
        return int(self._torch.cuda.mem_get_info(self._device)[0])

    def allocate(self, nbytes: int) -> None:
        self._memory = self._torch.full(
            (nbytes,), 0xA5, dtype=self._torch.uint8, device=self._device
        )
        if self._cuda:
            self._torch.cuda.synchronize(self._device)

    def pin(self, memory: Bytes) -> None:
        if self._cuda:
            _check(self._torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))

    def unpin(self, memory: Bytes) -> None:
        if self._cuda:
            _check(self._torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data))

    def upload(self, at: int, data: memoryview) -> None:
        host = self._torch.frombuffer(data, dtype=self._torch.uint8)
        self._copy(self._memory[at : at + len(data)], host)

    def download(self, at: int, into: memoryview) -> None:
        host = self._torch.frombuffer(into, dtype=self._torch.uint8)
        self._copy(host, self._memory[at : at + len(into)])

    def release(self) -> None:
        self._memory = None
        if self._cuda:
            self._torch.cuda.empty_cache()

    def _copy(self, target: Any, source: Any) -> None:
        if not self._cuda:
            target.copy_(source)
            return
        stream = getattr(self._streams, "stream", None)
        if stream is None:
            stream = self._streams.stream = self._torch.cuda.Stream(self._device)
        with self._torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        stream.synchronize()


class CupyDevice:
    """The same through CuPy."""

    def __init__(self, index: int) -> None:
        import cupy

        self._cupy: Any = cupy
        self._index = index
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        self.name = bytes(properties["name"]).decode()
        self._memory: Any = None
        self._streams = threading.local()

    def free_bytes(self) -> int:
        with self._cupy.cuda.Device(self._index):
            return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def allocate(self, nbytes: int) -> None:
        with self._cupy.cuda.Device(self._index):
            self._memory = self._cupy.full(nbytes, 0xA5, dtype=self._cupy.uint8)
            self._cupy.cuda.runtime.deviceSynchronize()

    def pin(self, memory: Bytes) -> None:
        self._cupy.cuda.runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)

    def unpin(self, memory: Bytes) -> None:
        self._cupy.cuda.runtime.hostUnregister(memory.ctypes.data)

    def upload(self, at: int, data: memoryview) -> None:
        host = np.frombuffer(data, np.uint8)
        self._copy(self._memory.data.ptr + at, host.ctypes.data, host.nbytes, "memcpyHostToDevice")

    def download(self, at: int, into: memoryview) -> None:
        host = np.frombuffer(into, np.uint8)
        self._copy(host.ctypes.data, self._memory.data.ptr + at, host.nbytes, "memcpyDeviceToHost")

    def release(self) -> None:
        self._memory = None
        self._cupy.get_default_memory_pool().free_all_blocks()

    def _copy(self, target: int, source: int, nbytes: int, direction: str) -> None:
        runtime = self._cupy.cuda.runtime
        with self._cupy.cuda.Device(self._index):
            stream = getattr(self._streams, "stream", None)
            if stream is None:
                stream = self._streams.stream = self._cupy.cuda.Stream(non_blocking=True)
            runtime.memcpyAsync(target, source, nbytes, getattr(runtime, direction), stream.ptr)
            stream.synchronize()


def _check(result: Any) -> None:
    code = int(result[0]) if isinstance(result, tuple) else int(result)
    if code:
        raise PlaceError(
            f"pinning the buffer pool for the GPU failed (CUDA error {code}); raise the locked "
            "memory limit (ulimit -l), or use --gpu emulated"
        )


def find_devices(count: int) -> tuple[list[Callable[[], Device]], str]:
    """Makers of `count` CUDA devices, and what was found; an empty list and why, if there are
    fewer."""
    reasons: list[str] = []
    try:
        import torch
    except ImportError:
        reasons.append(f"torch is not installed ({install_hint('cuda')})")
    else:
        cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if cards >= count:
            return [partial(TorchDevice, "cuda", i) for i in range(count)], "torch"
        reasons.append(f"torch sees {cards} CUDA devices, {count} are wanted")
    try:
        import cupy
    except ImportError:
        reasons.append("CuPy is not installed")
    else:
        try:
            cards = int(cupy.cuda.runtime.getDeviceCount())
        except cupy.cuda.runtime.CUDARuntimeError:
            cards = 0
        if cards >= count:
            return [partial(CupyDevice, i) for i in range(count)], "cupy"
        reasons.append(f"CuPy sees {cards} CUDA devices, {count} are wanted")
    return [], "; ".join(reasons)


class GpuStore(ArenaStore):
    """A tier over one or more devices, each with `per_device` bytes of it."""

    tier = Tier.GPU
    engine = "cuda"
    capabilities = Capability.DATA

    def __init__(
        self, devices: Sequence[Device], per_device: int, library: str, memory_fraction: float
    ) -> None:
        super().__init__([per_device] * len(devices))
        self._devices = devices
        self._per_device = per_device
        self._library = library
        self._pinned: list[Bytes] = []
        for number, device in enumerate(devices):
            usable = int(device.free_bytes() * memory_fraction)
            if per_device > usable:
                raise PlaceError(
                    f"--gpu-mem-gb: {human_bytes(per_device)} are wanted on GPU {number}, but "
                    f"gpu_backend.memory_fraction {memory_fraction} of its free memory is "
                    f"{human_bytes(usable)}; ask for less, or raise the fraction"
                )
        for device in devices:
            device.allocate(per_device)

    def pin(self, memory: Bytes) -> None:
        """Let the devices copy to and from this memory directly."""
        self._devices[0].pin(memory)  # one registration serves all devices of the process
        self._pinned.append(memory)

    def copy_in(self, at: int, data: memoryview) -> None:
        number, local = divmod(at, self._per_device)
        self._devices[number].upload(local, data)

    def copy_out(self, at: int, into: memoryview) -> None:
        number, local = divmod(at, self._per_device)
        self._devices[number].download(local, into)

    def describe(self) -> Mapping[str, Any]:
        return {
            "engine": self.engine,
            "library": self._library,
            "devices": [device.name for device in self._devices],
            "capacity_bytes": self._per_device * len(self._devices),
            "pinned_staging": bool(self._pinned),
            "emulated": False,
        }

    def close(self) -> None:
        for memory in self._pinned:
            self._devices[0].unpin(memory)
        self._pinned.clear()
        for device in self._devices:
            device.release()
