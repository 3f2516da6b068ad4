"""The hardware of a simulation: the files that describe it, memory of GPUs, waits for links."""

from collections.abc import Callable, Sequence
from pathlib import PurePath

from kv_cache.config.scenario_hardware import HardwareUsed
from kv_cache.result.simulation.facts import SimVariant, names_below
from kv_cache.result.simulation.measures import Measure
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


def link_waits(
    variants: Sequence[SimVariant],
    label: Callable[[SimVariant], Cell],
    text: Callable[[SimVariant, Measure], Cell],
) -> Table:
    """A row for each kind of link of each variant that anything waited for."""
    measures = {
        "mean": "wait_ms.mean", "p50": "wait_ms.p50", "p99": "wait_ms.p99", "max": "wait_ms.max",
        "queue, mean": "queue.mean", "longest": "queue.longest",
    }  # fmt: skip
    rows: list[list[Cell]] = [
        [
            label(variant),
            kind,
            *(
                text(variant, Measure(path=f"links.{kind}.{path}", label=name))
                for name, path in measures.items()
            ),
        ]
        for variant in variants
        for kind in names_below([variant], "links")
        if variant.mean(f"links.{kind}.wait_ms.mean")
    ]
    columns = [
        ShownColumn("wait for a link, ms"), ShownColumn("of"),
        *(ShownColumn(name, units.COUNT) for name in measures),
    ]  # fmt: skip
    return Table(title="Waiting for links", columns=columns, rows=rows)
