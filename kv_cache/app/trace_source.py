"""A trace, or synthetic users, as the stream of requests that a run with the same options would
plan. `lab` and `trace` look at such a stream; nothing is measured and nothing is served."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from kv_cache.bench.progress import SILENT, Progress
from kv_cache.config.build import Load, build_load
from kv_cache.config.load import Invocation
from kv_cache.config.root import Config
from kv_cache.config.run_warnings import config_warnings
from kv_cache.config.schema import opt
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.core.model import ModelShape
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.files.recording import as_recorded
from kv_cache.workload.distribution import Times
from kv_cache.workload.formats import TRACE_FORMATS
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.surveying import (
    Survey,
    doubts,
    read,
    refuse_doubts,
    require_usable,
)
from kv_cache.workload.formats.trace_files import Tally, Trace, open_trace

log = logging.getLogger("kv_cache")

SEED = 0
"""The seed if none is given, so that two looks see the same."""
USERS_REQUESTS = 10_000
MOST_USERS_REQUESTS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Which trace or users, and how much of it."""

    path: str | None = opt(None, "Trace to look at", flag="PATH", metavar="PATH")
    users: bool = opt(False, "Synthetic users, not a trace", flag="--users")
    requests: int | None = opt(
        None, f"The first N requests; if not given, all, or {USERS_REQUESTS} of synthetic users",
        low=1, flag="--requests", metavar="N",
    )  # fmt: skip


class TraceSource(Struct, frozen=True, kw_only=True):
    """A checked choice of what to look at; no file has been read yet."""

    config: Config
    requests: int | None  # the first ones; None: all

    def refuse_as_target(self, target: Path | None, flag: str) -> None:
        """Raise PlaceError if `target`, which is to be written, is the trace that is read."""
        path = self.config.trace_path()
        if target is not None and path is not None and same_file(target, path):
            raise PlaceError(f"{flag} {target} is the trace itself; name another file")

    def read_trace(self, progress: Progress = SILENT) -> tuple[Trace, Survey]:
        """Return the trace, read once, and what was seen of it. Raises UsageError."""
        trace, survey = _read_with_doubts(self.config, progress)
        assert trace is not None
        assert survey is not None
        return trace, survey

    def open(self, progress: Progress = SILENT) -> "RequestStream":
        """Read a trace once, so that bad rows are found first, and plan its requests. Raises
        UsageError."""
        watch = RowWatch()
        trace, survey = _read_with_doubts(self.config, progress)
        config = as_recorded(self.config, trace)
        if trace is not None:
            parts = {name: getattr(trace, name) for name in trace.__struct_fields__}
            trace = _WatchedTrace(**parts, watch=watch)
        model = config.model_shape()
        load = build_load(config, model, Seed(config.run.seed or SEED), trace, survey, None)
        return RequestStream(
            config=config, model=model, load=load, trace=trace, survey=survey, watch=watch,
            requests=self.requests,
        )  # fmt: skip


class RowWatch(Struct, eq=False, kw_only=True):
    """Notes what requests do not say of their rows, while it is `on`: a source reads rows ahead
    when it is made."""

    sessions: set[str] = field(default_factory=set)
    thinks: Times = field(default_factory=Times)
    on: bool = False

    def see(self, row: TraceRow) -> None:
        if not self.on:
            return
        if row.think_ns is not None and (row.session in self.sessions or row.after):
            self.thinks.add(row.think_ns)
        if row.session is not None:
            self.sessions.add(row.session)


class _WatchedTrace(Trace, frozen=True, kw_only=True):
    """A trace that shows each row to a watch as it passes."""

    watch: RowWatch

    def rows(self, tally: Tally | None = None) -> Iterator[TraceRow]:
        for row in Trace.rows(self, tally):
            self.watch.see(row)
            yield row


class RequestStream(Struct, frozen=True, kw_only=True):
    """The requests of a source, and what the source was built of."""

    config: Config
    model: ModelShape
    load: Load
    trace: Trace | None
    survey: Survey | None
    watch: RowWatch
    requests: int | None

    def plan(self) -> Iterator[Request]:
        """Yield the requests in the order in which they are due."""
        self.watch.on = True
        return islice(self.load.source.plan(), self.requests)

    def in_session(self, request: Request) -> bool:
        if request.retrieved or request.once:
            return False
        return self.trace is None or request.conversation in self.watch.sessions

    @property
    def grouped(self) -> bool:
        return self.trace is not None and TRACE_FORMATS[self.trace.format_name].grouped


def source_of(options: SourceOptions, invocation: Invocation) -> TraceSource:
    """Return what is to be looked at. Raises ConfigError for everything that is wrong before a file
    is read; logs what is doubtful."""
    overrides = dict(invocation.overrides)
    if options.path is not None:
        if "workload.trace" in overrides:
            raise ConfigError(f"{options.path} and --trace are both traces; give one of them")
        overrides["workload.trace"] = options.path
    config = replace(invocation, overrides=overrides).config()
    _require_one_kind(options, config)
    for warning in config_warnings(config):
        log.warning(warning)
    requests = _limit(options, config)
    run = replace(
        config.run,
        seed=SEED if config.run.seed is None else config.run.seed,
        max_requests=requests or 0,
    )
    workload = replace(config.workload, replay_cycles=0 if options.users else 1)
    return TraceSource(config=replace(config, run=run, workload=workload), requests=requests)


def _require_one_kind(options: SourceOptions, config: Config) -> None:
    if config.replays and options.users:
        raise ConfigError(
            "--users looks at synthetic users, and a trace is given; leave one of them out"
        )
    if not config.replays and not options.users:
        raise ConfigError(
            "no trace is given; name one as the first word, or give --users where that is possible"
        )


def _limit(options: SourceOptions, config: Config) -> int | None:
    """Return how many requests are looked at; None: all."""
    if options.users and (options.requests or 0) > MOST_USERS_REQUESTS:
        raise ConfigError(
            f"--requests is {options.requests}; of synthetic users it must be "
            f"{MOST_USERS_REQUESTS:,} at most, as what they ask is kept"
        )
    limit = options.requests or config.run.max_requests
    return limit or (USERS_REQUESTS if options.users else None)


def open_workload(
    config: Config, progress: Progress = SILENT
) -> tuple[Trace | None, Survey | None]:
    """Read the whole trace once, so that a bad row is found now and not in an hour."""
    path = config.trace_path()
    if path is None:
        return None, None
    trace = open_trace(
        str(path),
        config.trace_format(),
        skip_bad_rows=config.workload.skip_bad_rows,
        reading=config.trace_reading(),
        time_unit=config.workload.trace_time_unit,
        block_tokens=config.workload.trace_block_tokens,
        include_failed_rows=config.workload.include_failed_rows,
    )
    with progress.bar("reading trace", unit="rows") as bar:
        trace, survey = read(trace, progress=bar.to)
    require_usable(trace, survey)
    if config.workload.strict_trace:
        refuse_doubts(trace, survey, shares=config.workload.trace_prompts)
    return trace, survey


def _read_with_doubts(config: Config, progress: Progress) -> tuple[Trace | None, Survey | None]:
    trace, survey = open_workload(config, progress)
    if trace is not None and survey is not None:
        for warning in doubts(trace, survey, shares=config.workload.trace_prompts):
            log.warning(warning)
    return trace, survey


def same_file(one: Path, other: Path) -> bool:
    """Return whether both paths lead to one file that is there."""
    try:
        return one.samefile(other)
    except OSError:
        return False
