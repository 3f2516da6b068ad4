"""The hardware of a simulation, as the files have it that describe it."""

from collections.abc import Callable, Sequence
from pathlib import PurePath

from kv_cache.config.scenario_hardware import HardwareUsed
from kv_cache.result.simulation.facts import SimVariant, names_below
from kv_cache.view import units
from kv_cache.view.parts import Cell, ShownColumn, Table

_AMOUNT = units.DisplayUnit("", 1e9)  # of a table that says that it is in GB


def hardware_text(hardware: Sequence[HardwareUsed]) -> str:
    """The parts of each file and state, with the source of one that is alone."""
    groups: dict[tuple[str, str], list[HardwareUsed]] = {}
    for used in hardware:
        groups.setdefault((used.file, used.state), []).append(used)
    texts = []
    for (file, state), parts in groups.items():
        alone = (parts[0].source, parts[0].date) if len(parts) == 1 else ()
        origin = ", ".join(filter(None, (PurePath(file).name, *alone)))
        texts.append(f"{', '.join(part.part for part in parts)} {state} ({origin})")
    return "; ".join(texts) + "; the rest is assumed"


def gpu_memory(variants: Sequence[SimVariant], label: Callable[[SimVariant], Cell]) -> Table:
    """How the memory of an instance is divided, where its GPUs are described."""
    rows: list[list[Cell]] = [
        [
            label(variant),
            group,
            variant.mean(f"{path}.gpus"),
            *(variant.mean(f"{path}.{name}_bytes") for name in ("weights", "activation", "kv")),
            variant.mean(f"{path}.kv_copies"),
        ]
        for variant in variants
        for group in names_below([variant], "gpus")
        for path in [f"gpus.{group}"]
    ]
    columns = [
        ShownColumn("memory of an instance, GB"), ShownColumn("of"),
        ShownColumn("GPUs", units.COUNT), ShownColumn("weights", _AMOUNT),
        ShownColumn("activations", _AMOUNT), ShownColumn("KV state", _AMOUNT),
        ShownColumn("copies of it", units.COUNT),
    ]  # fmt: skip
    return Table(title="Memory of GPUs", columns=columns, rows=rows)
