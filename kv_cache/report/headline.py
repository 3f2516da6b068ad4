"""The headline of a result, read from the document again: for `verify`, and to add up ranks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kv_cache.core.kinds import OpKind, RunMode
from kv_cache.metrics.pace import MEASURED, Batch, Paced, batch_count, headline, together
from kv_cache.report.node import MisshapenError, Node


def headline_of_ranks(sections: Sequence[Node]) -> dict[str, Any] | None:
    """The headline of ranks that ran together, of their sections `kv_cache`; None where they did
    not run in the same mode."""
    modes = {_mode(own) for own in sections}
    if len(modes) != 1:
        return None
    several = [(_seconds(own["headline"]["seconds"]), _paced(own["headline"])) for own in sections]
    return headline(modes.pop(), *together(several))


def headline_again(own: Node, moved: Mapping[OpKind, int]) -> Iterator[tuple[Node, Any, str]]:
    """Each value of the section beside the one that follows from the rest of the result, and from
    what. `moved` is what the operations of the window moved on storage."""
    section, seconds = own["headline"], _seconds(own["window_s"])
    mode, paced = _mode(own), _paced(own["headline"])
    again = headline(mode, seconds, paced)
    interval = again.pop("within_run")
    for name in ("metric", "bytes_per_second", "why_none", "seconds"):
        yield section[name], again[name], "the batches and the window give"
    if interval is None or section["within_run"].value is None:
        yield section["within_run"], interval, "the batches give"
    else:
        for name, value in interval.items():
            yield section["within_run"][name], value, "the batches give"
    total = sum(moved[kind] for kind in MEASURED[mode])
    yield section["bytes"], total, "the operations of the window give"
    count, batches = batch_count(seconds, paced.call_s), section["batches"]
    yield Node(len(paced.batches), f"{batches.path}.length"), count, "window and calls give"
    if paced.batches:
        spread = sum(batch.nbytes for batch in paced.batches)
        total = spread + paced.before_bytes - paced.after_bytes
        yield section["bytes"], total, "the batches and the edges of the window add up to"


def _mode(own: Node) -> RunMode:
    node = own["config"]["run"]["mode"]
    if node.value not in list(RunMode):
        raise MisshapenError(f"{node.path} is no mode of a run")
    return RunMode(node.text())


_LONGEST_S = 1e9


def _paced(section: Node) -> Paced:
    return Paced(
        nbytes=section["bytes"].whole(),
        before_bytes=section["before_bytes"].whole(),
        after_bytes=section["after_bytes"].whole(),
        call_s=_seconds(section["call_s"]),
        batches=tuple(_batch(row) for row in section["batches"].rows()),
    )


def _batch(row: Node) -> Batch:
    pair = row.rows()
    if len(pair) != 2:
        raise MisshapenError(f"{row.path} is not a pair of seconds and bytes")
    return Batch(_seconds(pair[0]), pair[1].whole())


def _seconds(node: Node) -> float:
    """A time that a run can have taken."""
    if not 0 <= node.number() <= _LONGEST_S:
        raise MisshapenError(f"{node.path} is {node.value}, which is no time of a run in seconds")
    return node.number()
