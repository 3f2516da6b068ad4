"""The process that runs ranks together, and is none of them.

It starts the ranks of this machine that are its own, waits until all are ready, opens their windows
at one instant, adds up their totals, and writes one result from theirs. If a rank is lost or a
signal comes it ends the run for all; what they have measured until then is in the result, with the
reason. It does no I/O on the cache directories.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field

from kv_cache.bench.interrupts import Interrupts
from kv_cache.bench.progress import Bar, Progress
from kv_cache.config.root import Config
from kv_cache.config.storage_targets import storage_places
from kv_cache.core.clocks import Exchange, offset_of
from kv_cache.core.crew import Crew, Member
from kv_cache.core.exits import Exit
from kv_cache.core.launched import COORDINATOR, KEY, RANK, RANKS, RANKS_HERE
from kv_cache.core.text import as_json
from kv_cache.core.units import GIB, NS_PER_MS, human_bytes, ns_to_ms, s_to_ns
from kv_cache.crew.wire import PATIENCE_S, Address, Gone, Listener, Message, Wire
from kv_cache.files.keep import Kept, keep
from kv_cache.files.result import Result
from kv_cache.result.paths import list_at, value_at

PINGS = 40  # there and back, for each measurement of a clock
LEAD_S = 0.5  # from the decision to open to the instant: for the message to get there
MOST_ERROR_MS = 10.0  # of a clock's offset; with more the skew is not reported
_LOOK_S = 0.2
_END_S = 30.0  # for ranks to end
_AFTER_REFUSAL_S = 1.0  # for the refusals of other ranks
_PONG_S = 2.0

log = logging.getLogger("kv_cache")


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be run together. `output` is the result of all."""

    how: str  # "clients": started here; "mpi": all but rank 0 come by themselves
    expected: int
    config: Config
    output: Path
    addresses: Sequence[Address]
    key: bytes


class _Rank(Struct, eq=False, kw_only=True):
    """The state of one rank, as far as the coordinator knows it."""

    rank: int
    wire: Wire | None = None
    about: Message = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    room: Sequence[Mapping[str, Any]] = ()  # that it wants in its directories
    refusal: str | None = None
    offset_ns: int | None = None
    error_ns: int | None = None
    waits: bool = False  # for the instant at which all open
    ready_ns: int | None = None
    opened_ns: int | None = None  # by its own clock, until it is told
    ended_ns: int | None = None
    totals: Message = field(default_factory=dict)
    heard_s: float = 0.0
    pong: Message | None = None
    code: int | None = None
    result: Any = None  # as plain JSON, whatever it is
    lost: str | None = None

    @property
    def here(self) -> bool:
        return self.wire is not None

    @property
    def waited_for(self) -> bool:
        """Whether its result may still arrive."""
        return self.code is None and self.lost is None

    def __str__(self) -> str:
        host = self.about.get("host")
        return f"rank {self.rank}" if host is None else f"rank {self.rank} on {host}"


class _Over(Exception):  # noqa: N818
    """Nothing has begun, and nothing will; with the exit code, and why."""

    def __init__(self, code: Exit, *why: str) -> None:
        super().__init__(*why)
        self.code = code


class Coordinator:
    """Runs ranks together, once."""

    def __init__(self, plan: Plan, listener: Listener) -> None:
        self.plan = plan
        self._listener = listener
        self._ranks = [_Rank(rank=number) for number in range(plan.expected)]
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._planned_ns: int | None = None
        self._ended_early: str | None = None
        self._deadline_s: float | None = None  # for what is waited for
        self._strangers: list[Wire] = []  # that have not said which rank they are
        self._welcomed = False
        self._caught: Interrupts
        self._bar: Bar

    def close(self) -> None:
        self._listener.close()

    def run(
        self,
        caught: Interrupts,
        progress: Progress,
        on_result: Callable[[Result], None],
        refuse: Callable[[str], None],
    ) -> Result:
        """Return the result of all, which `on_result` gets before the ranks are let go; `refuse`
        gets the reasons if nothing could begin."""
        self._caught = caught
        places = storage_places(self.plan.config)  # the cache directories of this machine's ranks
        new = [place for place in places if isinstance(place, Path) and not place.exists()]
        try:
            with progress.bar() as self._bar:
                self._start_children()
                self._gather()
                self._begin()
                self._conduct()
            result = self._finish()
            on_result(result)
        except _Over as over:
            self._refuse_all(over)
            for sentence in over.args:
                refuse(sentence)
            result = Result(document={}, end=over.code)
        except BaseException as error:  # a defect; what the ranks have measured is not lost
            self._end(f"the coordinator broke ({type(error).__name__})")
            raise
        finally:
            self._leave()
            _remove_empty(new)
        return result

    # --- before anything begins --------------------------------------------------------------

    def _start_children(self) -> None:
        """Start the ranks whose parent this process is: all of --clients, rank 0 of an MPI job.
        They are in sessions of their own, so that Ctrl-C reaches this process alone, which ends
        them."""
        expected = self.plan.expected if self.plan.how == "clients" else 1
        base = {
            **os.environ,
            COORDINATOR: orjson.dumps(self.plan.addresses).decode(),
            KEY: self.plan.key.hex(),
        }
        for number in range(expected):
            variables = {RANK: number, RANKS: expected, RANKS_HERE: expected}
            rank_variables = variables if self.plan.how == "clients" else {}
            self._children[number] = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**base, **{name: str(value) for name, value in rank_variables.items()}},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                start_new_session=True,
            )

    def _gather(self) -> None:
        """Wait until every rank has connected and has checked all that it can."""
        first_s: float | None = None
        while not all(rank.config is not None for rank in self._ranks):
            while (wire := self._listener.next(0.0)) is not None:
                self._strangers.append(wire)
            self._pump(_LOOK_S if all(rank.here for rank in self._ranks) else 0.05)
            self._stop_before_the_beginning()
            if first_s is None and any(rank.here for rank in self._ranks):
                first_s = time.monotonic()
            if first_s is not None and time.monotonic() - first_s > self._patience_s:
                missing = ", ".join(str(rank) for rank in self._ranks if rank.config is None)
                problem = f"{missing} did not come, or did not get ready to begin"
                raise _Over(Exit.EARLY, f"{problem}, in {self._patience_s:g} s (--clients-timeout)")
        self._compare()
        demands = {rank.rank: (rank.about["machine"], rank.room) for rank in self._ranks}
        if (short := too_little_room(demands)) is not None:
            raise _Over(Exit.REFUSED, short)

    @property
    def _patience_s(self) -> float:
        return self.plan.config.run.clients_timeout_s

    def _join(self, wire: Wire, about: Message) -> None:
        number, plan = int(about.get("rank", -1)), self.plan
        if about.get("ranks") != plan.expected or number not in range(plan.expected):
            why = f"rank {number} of {about.get('ranks')} came to a run of {plan.expected} ranks"
            wire.send("refused", why=why)
            raise _Over(Exit.REFUSED, f"{why}; start all ranks with one command")
        rank = self._ranks[number]
        if rank.here:
            wire.send("refused", why=f"there is a {rank} already")
            raise _Over(Exit.REFUSED, f"rank {number} came twice; start all ranks with one command")
        rank.wire, rank.about, rank.heard_s = wire, about, time.monotonic()
        wire.send("place", output=str(plan.output))

    def _stop_before_the_beginning(self) -> None:
        if self._caught.came:
            raise _Over(
                Exit(self._caught.exit_code), f"{self._caught.name} came before the ranks began"
            )
        if any(rank.refusal is not None for rank in self._ranks):
            until_s = time.monotonic() + _AFTER_REFUSAL_S
            while time.monotonic() < until_s:
                self._pump(_LOOK_S)
            refusals = {rank.refusal: str(rank) for rank in reversed(self._ranks) if rank.refusal}
            raise _Over(Exit.REFUSED, *(f"{who}: {why}" for why, who in sorted(refusals.items())))
        for rank in self._ranks:
            if rank.lost is not None:
                child = self._children.get(rank.rank)
                code = Exit.EARLY if child is None else child.poll()
                usage = Exit.REFUSED if code == Exit.REFUSED else Exit.EARLY
                raise _Over(usage, f"{rank} {rank.lost} before the ranks began; nothing was run")

    def _compare(self) -> None:
        """Refuse ranks that run another program or have other options, but for the per-rank
        ones."""
        first = self._ranks[0]
        for rank in self._ranks[1:]:
            if rank.about["version"] != first.about["version"]:
                raise _Over(
                    Exit.REFUSED,
                    f"{rank} runs version {rank.about['version']} and {first} version "
                    f"{first.about['version']}; install the same on all machines",
                )
            others, ours = rank.config or {}, first.config or {}
            different = [
                path
                for path in dict.fromkeys([*ours, *others])
                if ours.get(path) != others.get(path)
            ]
            if different:
                more = f", and {len(different) - 3} more" if len(different) > 3 else ""
                differences = "; ".join(
                    f"{path} is {others.get(path)!r} there and {ours.get(path)!r} here"
                    for path in different[:3]
                )
                raise _Over(
                    Exit.REFUSED,
                    f"{rank} has another configuration than {first}: {differences}{more}; give all "
                    "ranks the same options and files",
                )

    def _refuse_all(self, over: _Over) -> None:
        """Tell all ranks not to begin."""
        why = "; ".join(over.args) or "it cannot begin"
        for rank in self._ranks:
            if rank.wire is not None:
                with suppress(Gone):
                    rank.wire.send("refused", why=why)

    # --- the run -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Let the ranks begin: from here on there will be a result."""
        self._measure_clocks()
        self._welcomed = True
        for rank in self._ranks:
            machine = rank.about["machine"]
            others = [
                other.about["pid"]
                for other in self._ranks
                if other is not rank and other.about["machine"] == machine
            ]
            self._tell(rank, "welcome", siblings=others)

    def _conduct(self) -> None:
        """Wait until each rank has sent its result, or is lost."""
        while any(rank.waited_for for rank in self._ranks):
            self._pump(_LOOK_S)
            self._look()
            totals = [rank.totals for rank in self._ranks if rank.totals]
            self._bar.note(progress_line(totals, self.plan.expected, self._ended_early))

    def _look(self) -> None:
        """Do what is due, and end the run for all if something went wrong."""
        if self._caught.came:
            self._end(f"{self._caught.name} came")
        if self._ended_early is not None:
            return self._give_up_on_late()
        lost = next((rank for rank in self._ranks if rank.lost is not None), None)
        if lost is not None:
            return self._end(f"{lost} {lost.lost}")
        silent = next((rank for rank in self._ranks if self._silent(rank)), None)
        if silent is not None:
            silent.lost = f"said nothing for {PATIENCE_S:g} s"
            return self._end(f"{silent} {silent.lost}")
        if self._planned_ns is None or any(rank.waits for rank in self._ranks):
            return self._open_if_ready()
        return self._look_for_laggards("result", [r for r in self._ranks if r.code is None])

    def _silent(self, rank: _Rank) -> bool:
        return rank.waited_for and time.monotonic() - rank.heard_s > PATIENCE_S

    def _open_if_ready(self) -> None:
        """Open the windows of all; once more for what each can do without storage, as they share
        a machine there too."""
        late = [rank for rank in self._ranks if rank.waited_for and not rank.waits]
        if late:
            return self._look_for_laggards("ready", late)
        self._deadline_s = None
        if self._planned_ns is None:
            self._measure_clocks()
        opens_ns = time.monotonic_ns() + s_to_ns(LEAD_S)
        self._planned_ns = self._planned_ns or opens_ns
        for rank in self._ranks:
            if rank.waits:
                rank.waits = False
                self._tell(rank, "go", at_ns=opens_ns + (rank.offset_ns or 0))
        return None

    def _look_for_laggards(self, what: str, late: Sequence[_Rank]) -> None:
        """End the run if the others have waited for long enough."""
        if not late or len(late) == len(self._ranks):
            return
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self._patience_s
        if time.monotonic() < self._deadline_s:
            return
        words = {"ready": "was not ready", "result": "gave no result"}[what]
        for rank in late:
            rank.lost = f"{words} {self._patience_s:g} s after the first (--clients-timeout)"
        self._end(f"{late[0]} {late[0].lost}")

    def _end(self, why: str) -> None:
        """End the run for all; the first reason counts."""
        if self._ended_early is not None:
            return
        self._ended_early = why
        self._deadline_s = time.monotonic() + _END_S
        log.warning("the run ends for all ranks: %s", why)
        for rank in self._ranks:
            if rank.code is None:
                self._tell(rank, "stop", why=why)

    def _give_up_on_late(self) -> None:
        if self._deadline_s is not None and time.monotonic() > self._deadline_s:
            for rank in self._ranks:
                if rank.waited_for:
                    rank.lost = f"gave no result within {_END_S:g} s of the end"

    # --- messages ----------------------------------------------------------------------------

    def _pump(self, timeout_s: float) -> None:
        """Handle the messages that have arrived, within a time that is short enough for signals."""
        wires: dict[Any, _Rank | None] = dict.fromkeys(self._strangers)
        wires |= {rank.wire: rank for rank in self._ranks if rank.wire is not None}
        if not wires:
            time.sleep(timeout_s)
        for wire in wait(list(wires), timeout_s) if wires else ():
            assert isinstance(wire, Wire)
            self._receive(wire, wires[wire])
        for number, child in self._children.items():
            rank = self._ranks[number]
            if child.poll() is not None and not rank.here and rank.lost is None:
                rank.lost = f"ended with exit code {child.returncode}"

    def _receive(self, wire: Wire, rank: _Rank | None) -> None:
        try:
            message = wire.receive(0.0)
            if message is None:
                return
            if rank is not None:
                rank.heard_s = time.monotonic()
                self._take(rank, message)
            elif message["what"] == "join":
                self._strangers.remove(wire)
                self._join(wire, message)
        except Gone as error:
            self._gone(wire, rank, error)

    def _gone(self, wire: Wire, rank: _Rank | None, error: Gone) -> None:
        wire.close()
        rank = rank or next((one for one in self._ranks if one.wire is wire), None)
        if rank is None:
            self._strangers = [other for other in self._strangers if other is not wire]
            return
        rank.wire = None
        log.debug("%s: %s", rank, error)
        if rank.waited_for:
            rank.lost = rank.lost or f"died{self._death_of(rank)}"

    def _death_of(self, rank: _Rank) -> str:
        """In words, where it is our child."""
        child = self._children.get(rank.rank)
        if child is None:
            return ""
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(2.0)
            return f" (signal {-code})" if code < 0 else f" (exit code {code})"
        return ""

    def _take(self, rank: _Rank, message: Message) -> None:
        now_ns = time.monotonic_ns()
        match message["what"]:
            case "hello":
                rank.config, rank.room = message["config"], message["room"]
            case "refusal":
                rank.refusal = message["why"]
                if self._welcomed:
                    rank.lost = f"could not begin: {rank.refusal}"
            case "pong":
                rank.pong = {**message, "back_ns": now_ns}
            case "ready":
                rank.waits, rank.ready_ns = True, rank.ready_ns or now_ns
            case "opened":
                rank.opened_ns = rank.opened_ns or message["at_ns"]
            case "totals":
                rank.totals = message
            case "signal":
                rank.lost = f"was ended by {message['name']}"
                self._end(f"{rank} {rank.lost}")
                rank.lost = None  # its result comes
            case "result":
                self._take_result(rank, message, now_ns)

    def _take_result(self, rank: _Rank, message: Message, now_ns: int) -> None:
        rank.code, rank.ended_ns = message["code"], now_ns
        rank.result, rank.lost = read_result(message.get("attached"), message["code"])
        if rank.lost is None and self._ended_early is None:
            rank.lost = _early_end(rank.result)

    def _tell(self, rank: _Rank, what: str, **fields: Any) -> None:
        if rank.wire is not None:
            with suppress(Gone):  # what has come from it before is read first
                rank.wire.send(what, **fields)

    # --- clocks ------------------------------------------------------------------------------

    def _measure_clocks(self) -> None:
        """Of every rank, anew: clocks drift."""
        for rank in self._ranks:
            exchanges: list[Exchange] = []
            while len(exchanges) < PINGS and (one := self._exchange(rank, len(exchanges))):
                exchanges.append(one)
            if exchanges:
                offset = offset_of(exchanges)
                rank.offset_ns, rank.error_ns = offset.offset_ns, offset.error_ns

    def _exchange(self, rank: _Rank, number: int) -> Exchange | None:
        """None where no answer comes in time, which the rest of the run deals with."""
        if rank.wire is None or self._caught.came:
            return None
        rank.pong, sent_ns = None, time.monotonic_ns()
        self._tell(rank, "ping", number=number)
        until_s = time.monotonic() + _PONG_S
        while rank.pong is None or rank.pong["number"] != number:
            if rank.wire is None or time.monotonic() > until_s:
                return None
            if wait([rank.wire.fileno()], _LOOK_S):
                self._receive(rank.wire, rank)
        return Exchange(sent_ns=sent_ns, theirs_ns=rank.pong["at_ns"], back_ns=rank.pong["back_ns"])

    # --- the end -----------------------------------------------------------------------------

    def _crew(self) -> Crew:
        return Crew(
            how=self.plan.how,
            expected=self.plan.expected,
            members=[self._member(rank) for rank in self._ranks],
            planned_ns=self._planned_ns,
            ended_early=self._ended_early,
        )

    def _member(self, rank: _Rank) -> Member:
        opened_ns = rank.opened_ns
        if opened_ns is not None and rank.offset_ns is not None:
            opened_ns -= rank.offset_ns
        return Member(
            rank=rank.rank,
            host=rank.about.get("host"),
            pid=rank.about.get("pid"),
            offset_ns=rank.offset_ns,
            offset_error_ns=rank.error_ns,
            ready_ns=rank.ready_ns,
            opened_ns=opened_ns,
            ended_ns=rank.ended_ns,
            lost=rank.lost,
        )

    def _finish(self) -> Result:
        from kv_cache.result.ranks import merged_document

        crew = self._crew()
        results = {rank.rank: rank.result for rank in self._ranks if rank.result is not None}
        _warn_of_clocks(crew)
        document = merged_document(results, crew)
        kept = keep(self.plan.output, as_json(document), "result of all ranks")
        return Result(document=document, kept=kept, end=self._end_code(kept))

    def _end_code(self, kept: Kept) -> Exit:
        if self._caught.came:
            return Exit(self._caught.exit_code)
        lost = self._ended_early is not None or any(rank.lost for rank in self._ranks)
        if any(rank.code == Exit.NO_ANSWER for rank in self._ranks) or kept.no_answer:
            return Exit.NO_ANSWER
        broken = any(rank.code != 0 for rank in self._ranks)
        return Exit.EARLY if lost or broken or not kept.in_place else Exit.DONE

    def _leave(self) -> None:
        """Let all ranks go; children that do not leave are killed."""
        for rank in self._ranks:
            self._tell(rank, "bye")
        until_s = time.monotonic() + _END_S
        for number, child in self._children.items():
            if not self._welcomed and not self._ranks[number].about:
                child.terminate()  # it has not come yet, and has nothing
            try:
                child.wait(max(0.1, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for wire in (*self._strangers, *(rank.wire for rank in self._ranks)):
            if wire is not None:
                wire.close()
        self._listener.close()


def _remove_empty(directories: Sequence[Path]) -> None:
    """Remove directories that the ranks made: none of them knows that it is the last to leave."""
    for directory in directories:
        with suppress(OSError):  # it is not empty
            directory.rmdir()


def too_little_room(demands: Mapping[int, tuple[str, Sequence[Mapping[str, Any]]]]) -> str | None:
    """Return why the ranks together want more space than there is, though it may be enough for
    each; None if it is there. `demands`: by rank its machine and its `wanted_space`."""
    wanting: dict[tuple[str, int], list[tuple[int, Mapping[str, Any]]]] = {}
    for rank, (machine, rows) in demands.items():
        for row in rows:
            wanting.setdefault((machine, row["device"]), []).append((rank, row))
    for on_one in wanting.values():
        rows = [row for _, row in on_one]
        needed = sum(row["wanted_bytes"] for row in rows)
        free = max(row["free_bytes"] for row in rows) + sum(row["dead_bytes"] for row in rows)
        if needed > free:
            ranks = ", ".join(dict.fromkeys(str(rank) for rank, _ in on_one))
            return (
                f"ranks {ranks} want {human_bytes(needed)} together on the file system of "
                f"{rows[0]['directory']}, but {human_bytes(free)} are free there; lower "
                "--storage-capacity-gb, which is each rank's, or start fewer"
            )
    return None


def read_result(attached: bytes | None, code: int) -> tuple[Any, str | None]:
    """Return the result of a rank as plain JSON, and why there is none, if so."""
    if attached is None:
        return None, f"wrote no result (exit code {code})"
    try:
        return orjson.loads(attached), None
    except orjson.JSONDecodeError as error:
        return None, f"gave a result that is not JSON ({error})"


def _early_end(result: Any) -> str | None:
    """Return why a rank ended early of its own accord; None if it finished. The merge reports what
    is not a result at all."""
    status = value_at(result, "kv_cache.status")
    if status in (None, "finished"):
        return None
    reasons = list_at(result, "kv_cache.passport.reasons")
    first = f": {reasons[0]}" if reasons else ""
    return f"did not finish ({status}){first}"


def _warn_of_clocks(crew: Crew) -> None:
    worst = max((member.offset_error_ns or 0 for member in crew.members), default=0)
    if worst > MOST_ERROR_MS * NS_PER_MS:
        log.warning(
            "the clocks of the ranks are known to %.1f ms only, and so is how far apart their "
            "windows opened",
            ns_to_ms(worst),
        )


def progress_line(totals: Sequence[Message], expected: int, ending: str | None = None) -> str:
    """Return one line about all ranks that have sent totals: sums, and the worst p95."""
    phases = [each["phase"] for each in totals if "phase" in each]
    parts = [
        f"{expected} ranks",
        "ending" if ending else " ".join(dict.fromkeys(phases)) or "starting",
        f"{max((each.get('elapsed_s', 0.0) for each in totals), default=0.0):5.1f} s",
        f"{_sum(totals, 'completed')} done",
        *([f"{failed} failed"] if (failed := _sum(totals, "failed")) else []),
        f"{_sum(totals, 'in_flight')} running",
        f"{_sum(totals, 'queued')} queued",
    ]
    for kind in ("read", "write"):
        rate = sum(each.get("bytes_per_s", {}).get(f"storage.{kind}", 0.0) for each in totals)
        late = [
            p95 for each in totals if (p95 := each.get("storage_p95_ns", {}).get(kind)) is not None
        ]
        worst = f" (p95 {ns_to_ms(max(late)):.0f} ms)" if late else ""
        parts.append(f"{kind} {rate / GIB:.2f} GiB/s{worst}")
    return "  ".join(parts)


def _sum(totals: Sequence[Message], name: str) -> int:
    return sum(int(each.get(name, 0)) for each in totals)
