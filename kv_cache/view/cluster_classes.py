"""What each class of requests of a simulation had."""

from collections.abc import Callable, Sequence

from kv_cache.result.simulation.facts import SimVariant, names_below
from kv_cache.result.simulation.measures import Measure
from kv_cache.view import units
from kv_cache.view.parts import Cell, ShownColumn, Table

_SHOWN = {
    "arrived": Measure(path="arrived", label="arrived"),
    "finished %": Measure(path="finished_share", label="finished", unit="%", scale=100),
    "tokens/s": Measure(path="tokens_per_s", label="tokens/s"),
    "of tokens %": Measure(path="token_share", label="of tokens", unit="%", scale=100),
    **{
        f"{name} {percent}": Measure(path=f"{time}_ms.{percent}", label=name)
        for name, time in (("queue", "queue"), ("TTFT", "ttft"), ("E2E", "e2e"))
        for percent in ("p50", "p95")
    },
}


def class_table(
    variants: Sequence[SimVariant],
    label: Callable[[SimVariant], Cell],
    text: Callable[[SimVariant, Measure], Cell],
) -> Table:
    """A row for each class of each variant; times in ms."""
    rows: list[list[Cell]] = [
        [
            label(variant),
            name,
            *(
                text(variant, Measure(
                    path=f"classes.{name}.{each.path}", label=each.label, unit=each.unit,
                    scale=each.scale,
                ))
                for each in _SHOWN.values()
            ),
        ]
        for variant in variants
        for name in names_below([variant], "classes")
    ]  # fmt: skip
    columns = [
        ShownColumn("classes, ms"), ShownColumn("of"),
        *(ShownColumn(name, units.COUNT) for name in _SHOWN),
    ]  # fmt: skip
    return Table(title="Classes of requests", columns=columns, rows=rows)
