"""Records the requests of a run as a trace (`--record`), and what its replay has to know.

A row is a whole request as it arrived: after users, prompts, retrievals, paces and mixes, before
any decision. `at_ns` counts from the beginning of the load, so that a replay with the same options
meets the same instants. The rounds of a preconditioning are no part of it.
"""

import os
from dataclasses import replace
from pathlib import Path

from msgspec.structs import asdict

from kv_cache.config.build import Load, is_recording
from kv_cache.config.root import Config
from kv_cache.config.sections import LAYER
from kv_cache.core.errors import TraceError
from kv_cache.core.kinds import RunMode
from kv_cache.core.request import Request
from kv_cache.files.records import LineWriter, packing, require_own_name
from kv_cache.workload.formats import canonical
from kv_cache.workload.formats.base import MAX_ID_CHARS, RowError
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.text_files import open_lines
from kv_cache.workload.formats.trace_files import Trace

FLAG = "--record"


class Recording(LineWriter):
    """Observes the driver: each request is added when it arrives."""

    def __init__(self, path: Path, config: Config, load: Load) -> None:
        self._header = header_of(config, load)
        super().__init__(
            Path(os.path.realpath(path)),
            encode=self._line,
            head=canonical.header_line(self._header).encode() + b"\n",
            packed=packing(path, FLAG),
        )

    def _line(self, request: Request) -> bytes:
        return canonical.row_line(row_of(request), self._header).encode() + b"\n"


def check_recording(path: Path) -> None:
    """Refuse a name that a recording cannot be written under. Raises PlaceError."""
    require_own_name(path, FLAG, _is_ours)


def _is_ours(first: str) -> bool:
    try:
        return canonical.read_header(first).load is not None
    except RowError:
        return False


def header_of(config: Config, load: Load) -> canonical.Header:
    """Return the header of a recording; requests that arrive on demand have no instants to keep."""
    semantics = config.lifecycle_semantics(synthetic=not config.replays)
    return canonical.Header(
        grouped=False,
        timed=not load.source.on_demand,
        source=_source(config),
        load=canonical.Load(
            block_tokens=load.geometry.block_tokens,
            prefill_only_from_tokens=semantics.prefill_only_from_tokens,
        ),
    )


def _source(config: Config) -> str:
    """Describe the objects of a run: a replay keeps their sizes, whatever its own model is."""
    run, tiers = config.run, config.tiers
    mix = ", ".join(f"{name} {share:g}" for name, share in run.model_mix.items())
    ranks = f"{tiers.ranks} of {tiers.tensor_parallel} ranks" if tiers.tensor_parallel > 1 else ""
    mode = "" if config.mode is RunMode.STANDARD else run.mode
    layers = "an object a layer" if config.semantics.object == LAYER else ""
    parts = (f"kv-cache.py run {FLAG}", mix or run.model, run.kv_dtype, ranks, mode, layers)
    return ", ".join(part for part in parts if part)[:MAX_ID_CHARS]


def row_of(request: Request) -> TraceRow:
    return TraceRow(
        line=0,
        at_ns=request.intended_ns,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        request=request,
    )


# --- replay ----------------------------------------------------------------------------------


def as_recorded(config: Config, trace: Trace | None) -> Config:
    """Return the configuration with the semantics of the recorded run for what the user left open:
    the rows do not show whether their users were synthetic."""
    if trace is None or not is_recording(trace):
        return config
    load = _header(trace.files[0]).load
    if load is None:
        return config
    options = config.semantics
    left_open = {
        name: value for name, value in asdict(load).items() if getattr(options, name) is None
    }
    return replace(config, semantics=replace(options, **left_open))


def recording_notes(config: Config, trace: Trace | None) -> list[str]:
    """Return notes if a recording was made of other objects than this run would ask for."""
    if trace is None or not is_recording(trace):
        return []
    recorded, now = _header(trace.files[0]).source, _source(config)
    kept = "its objects keep the names and sizes that they had"
    if recorded == now:
        return []
    return [f"{trace.files[0]} was recorded by {recorded!r}, and this is {now!r}: {kept}"]


def _header(path: Path) -> canonical.Header:
    for _, text in open_lines(path):
        if text.strip():
            return canonical.read_header(text)
    raise TraceError(f"{path}: the file is empty; a trace has at least one row")
