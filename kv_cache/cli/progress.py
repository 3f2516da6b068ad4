"""What a person sees of a run that goes on: a few lines on stderr that are drawn again in place,
off where nobody looks.

Where stderr is no terminal a line says every 10 s where things stand (`Status`), as whoever looks
into the log of a long run wants to know. `--no-progress` turns both off.

The lines are `live`'s. tqdm does what is hard about sharing a terminal: its lock, and log lines
that go above (`logging_redirect_tqdm`). The cursor waits at the beginning of the first line and
everything below it is erased with each drawing, so a window that becomes narrower, and an end at
any instant, leave nothing behind. A terminal that cannot do that (TERM=dumb) has one line.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from kv_cache.cli.live import Side, SloNow, Snapshot, TierNow, cut, live_lines, status_line
from kv_cache.config.build import class_slos
from kv_cache.config.root import Config
from kv_cache.core.kinds import OpKind, Outcome, Phase, Qos, Tier
from kv_cache.core.text import printable
from kv_cache.core.units import GIB, ns_to_ms
from kv_cache.metrics.slo import Slo, SloMeasure
from kv_cache.metrics.window import Latency, Window

if TYPE_CHECKING:  # studies show progress, too, and do without the driver of real runs
    from kv_cache.bench.run import RealRun

STATUS_S = 10.0
REDRAW_S = 0.5  # at most twice a second, and at once in a new phase
_DUMB = ("", "dumb", "unknown")


def _logs_above() -> AbstractContextManager[None]:
    """Return a context in which log lines go above what is drawn."""
    from tqdm.contrib.logging import logging_redirect_tqdm  # it brings asyncio

    return logging_redirect_tqdm()


class Status:
    """A line on stderr every 10 s, and none of what is over before."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, period_s: float = STATUS_S
    ) -> None:
        self._clock, self._period_s = clock, period_s
        self._next_s = clock() + period_s

    def due(self) -> bool:
        """Whether a line is to be said now; True once each time."""
        now = self._clock()
        if now < self._next_s:
            return False
        self._next_s = now + self._period_s
        return True

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a log that cannot be written ends no measurement
            print(printable(text), file=sys.stderr, flush=True)


class TerminalProgress:
    """`bench.progress` on stderr; nothing where it is not wanted."""

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted

    @contextmanager
    def bar(
        self, what: str = "", *, unit: str = "", total: float | None = None, scale: bool = False
    ) -> Iterator["_Bar"]:
        settings: dict[str, Any] = {"desc": what} if what else {}
        if unit:
            settings |= {"unit": unit if unit == "B" else f" {unit}", "unit_scale": scale}
        else:
            settings["bar_format"] = "{bar:20} {desc}" if total else "{desc}"
        if total is not None:
            settings["total"] = total
        logs = nullcontext() if not sys.stderr.isatty() else _logs_above()
        with self._tqdm(settings) as bar, logs:
            yield _Bar(bar)

    def _tqdm(self, settings: Mapping[str, Any]) -> "tqdm[Any]":
        if self._wanted and not sys.stderr.isatty():
            return StatusBar(Status(), **settings)
        width = get_terminal_size((100, 24)).columns  # some say 0, which tqdm would believe
        return tqdm(disable=not self._wanted, leave=False, ncols=width, **settings)

    @contextmanager
    def run(
        self, config: Config, prefix: str = "", slos: Sequence[Slo] | None = None
    ) -> Iterator["Callable[[RealRun], None]"]:
        if not self._wanted:
            yield lambda run: None
            return
        with RunProgress(config, prefix, slos) as shown:
            yield shown.tick


class _Bar:
    def __init__(self, bar: "tqdm[Any]") -> None:
        self._bar = bar

    def to(self, done: float) -> None:
        self._bar.update(done - self._bar.n)

    def note(self, text: str) -> None:
        if not self._bar.disable:
            self._bar.set_description_str(text, refresh=True)


_BAR = re.compile(r"\{l?_?bar[^}]*\} *")


class StatusBar(tqdm):  # type: ignore[type-arg]
    """tqdm's numbers as lines of status."""

    monitor_interval = 0  # no thread: what does not go on has nothing new to say

    def __init__(self, status: Status, bar_format: str | None = None, **options: Any) -> None:
        self._status = status
        if options.get("total") is not None and bar_format is None:
            bar_format = "{desc}: {percentage:.0f} %, {n_fmt} of {total_fmt}, {elapsed}, {rate_fmt}"
        plain = None if bar_format is None else _BAR.sub("", bar_format)
        super().__init__(bar_format=plain, miniters=1, leave=False, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None and self._status.due():
            self._status.say(str(self).strip())

    def clear(self, nolock: bool = False) -> None:
        """There is nothing to take back."""

    def close(self) -> None:
        if not self.disable:
            self.disable = True
            shared: Any = self
            shared._decr_instances(self)


# --- drawing ---------------------------------------------------------------------------------


def screen_size() -> tuple[int, int]:
    """Columns and lines of the terminal behind stderr, now."""
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):  # no terminal, or no file
        size = os.terminal_size((0, 0))
    known = get_terminal_size((80, 24))
    return size.columns or known.columns, size.lines or known.lines


class Block(tqdm):  # type: ignore[type-arg]
    """Lines in the place of a bar. Below them nothing of the screen is kept."""

    def __init__(self, *, disable: bool) -> None:
        self.lines: Sequence[str] = ()
        super().__init__(disable=disable, leave=False)

    def show(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.refresh()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """tqdm's own calls: None draws, an empty text erases."""
        self._write(_drawn(self.lines) if msg is None and self.lines else "\r\x1b[J")

    def clear(self, nolock: bool = False) -> None:
        if self.disable:
            return
        shared: Any = self
        with nullcontext() if nolock else shared.get_lock():
            self._write("\r\x1b[J")

    def _write(self, text: str) -> None:
        self.fp.write(text)
        self.fp.flush()


def _drawn(lines: Sequence[str]) -> str:
    up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
    return "\r" + "\x1b[K\r\n".join(lines) + f"\x1b[J{up}\r"


class _Line:
    """All of it on one line, for terminals that only know how to begin a line again."""

    def __init__(self, *, disable: bool) -> None:
        self._bar: tqdm[Any] = tqdm(disable=disable, leave=False, bar_format="{desc}", total=1)

    def show(self, text: str) -> None:
        self._bar.set_description_str(cut(text, screen_size()[0] - 1), refresh=True)

    def close(self) -> None:
        self._bar.close()


class _Warnings(logging.Handler):
    """How many came up, and the latest."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count, self.latest = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        self.count, self.latest = self.count + 1, record.getMessage()


# --- a run -----------------------------------------------------------------------------------


class RunProgress:
    """Draws a real run at its ticks, or says its status."""

    def __init__(
        self,
        config: Config,
        prefix: str = "",
        slos: Sequence[Slo] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slos` as the run has them: those of the classes, if not given."""
        self._config = config
        self._prefix = prefix
        self._clock = clock
        self._status = None if sys.stderr.isatty() else Status(clock)
        self._moved, self._moved_at = 0, clock()  # as the last line of status said
        self._stack = ExitStack()
        self._line: _Line | None = None
        self._block: Block | None = None
        self._warnings = _Warnings()
        self._slos = class_slos(config) if slos is None else tuple(slos)
        self._phase = ""
        self._phase_began = self._drawn_at = 0.0
        self._tiers: set[Tier] = {Tier.NVME}
        self._seen: dict[tuple[Qos, SloMeasure], Latency] = {}

    def __enter__(self) -> "RunProgress":
        if self._status is not None:
            return self
        if os.environ.get("TERM", "") in _DUMB:
            self._line = _Line(disable=False)
            self._stack.callback(self._line.close)
        else:
            self._block = Block(disable=False)
            self._stack.callback(self._block.close)
        self._stack.enter_context(_logs_above())
        logging.getLogger().addHandler(self._warnings)
        self._stack.callback(logging.getLogger().removeHandler, self._warnings)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tick(self, run: "RealRun") -> None:
        now = self._clock()
        if run.phase != self._phase:
            self._phase, self._phase_began = run.phase, now
        elif now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at = now
        if self._status is not None and self._status.due():
            self._status.say(self._said(run, now))
        if self._line is not None:
            self._line.show("  ".join(self._parts(run)))
        if self._block is not None:
            columns, lines = screen_size()
            shown = live_lines(self.snapshot(run), columns - 1, max(1, lines - 1))
            self._block.show(shown)

    def _said(self, run: "RealRun", now: float) -> str:
        """The line of status; its rate is that since the last one."""
        read, written = run.storage_bytes(OpKind.READ), run.storage_bytes(OpKind.WRITE)
        rate = (read + written - self._moved) / max(now - self._moved_at, 1e-9)
        self._moved, self._moved_at = read + written, now
        return status_line(self.snapshot(run), read, written, rate)

    def snapshot(self, run: "RealRun") -> Snapshot:
        """What is known of the run now. Counters are read without the driver's lock."""
        window = run.latest
        if window is not None:
            self._remember(window)
        gauges = None if window is None else window.gauges
        level = None if window is None else window.saturation
        tiers = [] if window is None else [_tier(window, tier) for tier in sorted(self._tiers)]
        elapsed_s, share, left_s, left_requests = self._time(run)
        number = len(run.rounds) + 1
        of_rounds = [f"round {number}"] if run.phase == Phase.PRECONDITION else []
        sure = run.precision.so_far() if run.precision is not None else ""
        return Snapshot(
            phase=run.phase,
            elapsed_s=elapsed_s,
            share=share,
            left_s=left_s,
            left_requests=left_requests,
            prefix="  ".join(word for word in (self._prefix, *of_rounds, sure) if word),
            completed=run.recorder.all.completed,
            running=run.serving.in_flight,
            queued=run.serving.queued,
            behind=run.world.behind.taken,
            users=None if gauges is None else gauges.users,
            workers=None if gauges is None else gauges.workers,
            saturation=None if level is None else level.level,
            tiers=tiers,
            storage=tiers[-1] if tiers else None,
            slos=[self._slo(slo) for slo in self._slos if (slo.qos, slo.measure) in self._seen],
            failed_operations=sum(dict(run.recorder.failures).values()),
            failed_requests=run.totals.requests(Outcome.FAILED),
            rejected=run.totals.requests(Outcome.REJECTED),
            warnings=self._warnings.count,
            latest_warning=self._warnings.latest,
        )

    def _time(self, run: "RealRun") -> tuple[float, float | None, float | None, int | None]:
        """Of the phase: seconds so far, the share that is over, seconds and requests left."""
        config = self._config.run
        elapsed_s = self._clock() - self._phase_began
        if run.phase == Phase.WARMUP:
            whole_s: float | None = config.warmup_s
        elif run.phase == Phase.MEASURE:
            elapsed_s, whole_s = run.elapsed_s, self._config.window_s()
        else:
            return elapsed_s, None, None, None
        shares = [elapsed_s / whole_s] if whole_s else []
        most, left = config.max_requests or None, None
        if most is not None and run.phase == Phase.MEASURE:
            left = most - (run.intake.submitted - run.intake.in_flight)
            shares.append(1 - left / most)
        left_s = None if whole_s is None else whole_s - elapsed_s
        return elapsed_s, max(shares, default=None), left_s, left

    def _remember(self, window: Window) -> None:
        """A tier that moved something stays in the picture, and so does what a class last felt:
        many windows have no answer of it."""
        self._tiers |= {tier for tier, _ in window.ops}
        for qos, mine in window.classes.items():
            for measure, latency in (
                (SloMeasure.RESPONSE, mine.response),
                (SloMeasure.TTFT, mine.ttft),
            ):
                if latency.count:
                    self._seen[qos, measure] = latency

    def _slo(self, slo: Slo) -> SloNow:
        seen = self._seen[slo.qos, slo.measure]
        known = {50.0: seen.p50_ns, 95.0: seen.p95_ns, 99.0: seen.p99_ns}
        ttft = "ttft " if slo.measure is SloMeasure.TTFT else ""
        return SloNow(
            name=f"{slo.qos} {ttft}p{slo.percent:g}",
            seen_ns=known.get(slo.percent),
            limit_ns=slo.limit_ns,
        )

    def _parts(self, run: "RealRun") -> list[str]:
        """As far as one line has room."""
        behind = run.world.behind.taken
        return [
            *([self._prefix] if self._prefix else []),
            f"{run.phase:<8} {run.elapsed_s:5.1f} s",
            f"{run.recorder.all.completed} done",
            f"{run.serving.in_flight} running",
            f"{run.serving.queued} queued",
            *([f"{behind} behind"] if behind else []),
            *([] if run.latest is None else _now(run.latest)),
            *([f"round {len(run.rounds) + 1}"] if run.phase == Phase.PRECONDITION else []),
        ]


def _tier(window: Window, tier: Tier) -> TierNow:
    read, write = (_side(window, tier, kind) for kind in (OpKind.READ, OpKind.WRITE))
    return TierNow(name=tier.label, read=read, write=write)


def _side(window: Window, tier: Tier, kind: OpKind) -> Side:
    ops = window.ops.get((tier, kind))
    if ops is None:
        return Side()
    seconds = max(window.seconds, 1e-9)
    return Side(
        bytes_per_s=ops.bytes / seconds,
        operations_per_s=ops.operations / seconds,
        latency=ops.latency,
    )


def _now(window: Window) -> list[str]:
    """The last window, as far as a line has room."""
    seconds = max(window.seconds, 1e-9)
    parts = []
    for kind in (OpKind.READ, OpKind.WRITE):
        p95_ns = window.storage_p95_ns(kind)
        late = "" if p95_ns is None else f" (p95 {ns_to_ms(p95_ns):.0f} ms)"
        parts.append(f"{kind} {window.storage_bytes(kind) / seconds / GIB:.2f} GiB/s{late}")
    if window.gauges.users is not None:
        parts.append(f"{window.gauges.users} users")
    if window.saturation is not None:
        parts.append(f"saturation {window.saturation.level:.2f}")
    return parts
