"""The sequence of MLPerf's KV-cache benchmark, driven: options x trials x clients.

Each trial is a set of ranks of `mlperf_wrapper.py`, started here or behind a launcher such as
mpirun. This process measures nothing: it starts, waits, ends what has to be ended, and keeps a
record of what it did. Everything that can be wrong with the input is found before the first rank.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kv_cache import __version__
from kv_cache.app.prepare import prepare
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.bench.progress import Bar
from kv_cache.cli.printing import print_plain
from kv_cache.cli.progress import TerminalProgress
from kv_cache.cli.wrapper import (
    CHECKOUT,
    Asked,
    invocation,
    own_config,
    read,
    result_of,
    start_of,
)
from kv_cache.config.load import config_file
from kv_cache.config.mlperf import MLPERF_OPTIONS, OPTION_DELAY_S, SEED, TRIALS
from kv_cache.core.errors import ConfigError, PlaceError
from kv_cache.core.exits import Exit
from kv_cache.core.mpirank import MpiRank
from kv_cache.core.text import as_json
from kv_cache.crew.child_processes import tied
from kv_cache.files.environment import Reader, filesystem
from kv_cache.files.writing import write_atomically
from kv_cache.mlperf.aggregate import run_summary, summarize
from kv_cache.mlperf.layout import (
    CONFIG,
    SUMMARY,
    Place,
    as_name,
    new_place,
    require_empty,
    results_in,
    trial_directory,
)
from kv_cache.mlperf.manifest import (
    FINISHED,
    INCOMPLETE,
    INTERRUPTED,
    RUNNING,
    write_manifest,
)
from kv_cache.mlperf.plan import CLOSED, OPEN, Plan, deviations, ranks_of_launch
from kv_cache.mlperf.systems import describe, write_description
from kv_cache.mlperf.tree import Tree, read_tree
from kv_cache.result.run import plain
from kv_cache.view.submission import submission_view
from kv_cache.view.terminal import terminal

_WRAPPER = CHECKOUT / "mlperf_wrapper.py"
_INSTALLED = (
    "from kv_cache.cli import console; from kv_cache.cli.wrapper import main; console(main)"
)
_SECRET = re.compile(r"(AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN))=")
_POLL_S = 0.2
_PATIENCE_S = 60.0  # ranks are done 5 s after a signal, on a busy machine later; a second one kills
_LATE_S = 6.0  # ranks outlive an mpirun that was ended by so much
_OVERHEAD_S = 15.0  # of a trial beside its window, until one is known
_FOREIGN = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_LOCALNRANKS")
_FROM_THE_SEQUENCE = {
    "output.output": "the tree has a place for each result",
    "tiers.cache_dir": "give --cache-dir before the --",
    "run.seed": "give --seed before the --",
    "run.trials": "give --trials before the --",
    "tiers.reclaim": "give --reclaim before the --",
    "tiers.keep_cache": "the next trial begins with an empty cache",
}


@dataclass(slots=True, kw_only=True)
class Running:
    """One sequence that goes on."""

    plan: Plan
    place: Place
    cache: str
    caught: Interrupts
    bar: Bar
    own: dict[str, Any]  # its record
    config: Path | None
    started_s: float = field(default_factory=time.monotonic)
    signals: int = 0  # that came
    took_s: list[float] = field(default_factory=list)  # what trials took beside their window

    def on_signal(self) -> None:
        self.signals += 1


def run(given: argparse.Namespace, argv: Sequence[str]) -> int:
    """Run the whole sequence; the exit code. Raises UsageError before anything is written."""
    plan = _plan(given, argv)
    results = Path(given.results_dir)
    require_empty(results)
    config = config_file(None if given.config is None else Path(given.config))
    overrides = _overrides(plan, config, given.cache_dir, _existing(results))
    together = _same_filesystem(given.cache_dir, results)
    departures = deviations(plan, overrides, together, given.cache_dir)
    if plan.division == CLOSED and departures:
        said = "; ".join(map(str, departures))
        raise ConfigError(
            f"--division closed refuses: {said}; leave it out, or say --division open"
        )
    stamp = f"{datetime.now():%Y%m%d_%H%M%S}"
    system = as_name(given.system_name or os.uname().nodename)
    place = new_place(results, plan.division, as_name(given.org), system, stamp)
    own = _record(plan, place, given.cache_dir, results, together)
    own["deviations"] = [{"rule": d.rule, "says": d.says} for d in departures]
    kept = _create(place, config)
    for departure in departures:
        _say(f"not as in CLOSED: {departure}")
    with interrupts() as caught, TerminalProgress().bar(total=1.0) as bar:
        sequence = Running(
            plan=plan, place=place, cache=given.cache_dir, caught=caught, bar=bar, own=own,
            config=kept,
        )  # fmt: skip
        caught.on_signal = sequence.on_signal
        _keep(sequence)
        _options(sequence)
        return _conclude(sequence, stamp)


# --- the plan --------------------------------------------------------------------------------


def _plan(given: argparse.Namespace, argv: Sequence[str]) -> Plan:
    if secret := _SECRET.search(given.launch or ""):
        raise ConfigError(
            f"--launch has {secret[1]} with its value, and the record keeps the line as it is; "
            f"export it, and give the name only (mpirun -x {secret[1]})"
        )
    launch = tuple(shlex.split(given.launch)) if given.launch else ()
    if launch and shutil.which(launch[0]) is None:
        raise ConfigError(f"--launch {launch[0]}: there is no such program; give what starts ranks")
    shorten = given.shorten
    if shorten is not None and shorten <= 0:
        raise ConfigError("--shorten 0: a window has a length; give the seconds to measure")
    delay = OPTION_DELAY_S if shorten is None else OPTION_DELAY_S * shorten / _longest()
    return Plan(
        division=given.division or (CLOSED if shorten is None else OPEN),
        options=tuple(sorted(set(given.options or MLPERF_OPTIONS))),
        trials=TRIALS if given.trials is None else given.trials,
        ranks=_ranks(given.clients, launch),
        seed=SEED if given.seed is None else given.seed,
        option_delay_s=min(delay, OPTION_DELAY_S) if given.option_delay is None
        else given.option_delay,
        shorten_s=shorten,
        config=given.config,
        flags=tuple(given.flags),
        reclaim=given.reclaim,
        launch=launch,
        command=("kv-cache.py", "mlperf", "run", *argv),
    )  # fmt: skip


def _longest() -> float:
    return max(option.duration_s for option in MLPERF_OPTIONS.values())


def _ranks(clients: int | None, launch: tuple[str, ...]) -> int:
    if not launch:
        return clients or 1
    told = ranks_of_launch(launch)
    if clients is None and told is None:
        raise ConfigError(
            f"--launch {shlex.join(launch)}: it does not say how many ranks it starts (-n N); "
            "say so with --clients N"
        )
    if clients is not None and told is not None and clients != told:
        raise ConfigError(f"--clients is {clients}, and --launch starts {told} ranks; give one")
    return clients or told or 1


def _overrides(plan: Plan, config: Path | None, cache: str, output: Path) -> Mapping[str, Any]:
    """What the flags set. All of them are read as each rank will, so that what a rank would refuse
    is refused now. Raises UsageError."""
    set_by_flags: dict[str, Any] = {}
    if plan.flags:
        from kv_cache.cli.flags import parse

        set_by_flags = dict(parse(list(plan.flags)).overrides)
        for path, why in _FROM_THE_SEQUENCE.items():
            if path in set_by_flags:
                raise ConfigError(f"{path} cannot be given to the clients: {why}")
    for option in plan.options:
        _try(plan, read(_words(plan, option, output, cache, config)), output)
    return set_by_flags


def _try(plan: Plan, asked: Asked, output: Path) -> None:
    """As rank 0 will begin, without beginning; behind a launcher only what no host changes."""
    if plan.launch:
        invocation(asked).config()
        return
    rank = MpiRank(rank=0, ranks=plan.ranks, on_machine=plan.ranks, told_by="PMI_RANK")
    config = own_config(invocation(asked).config(), rank, result_of(output))
    prepare(config, start=start_of(asked, rank, output))


def _words(plan: Plan, option: int, output: Path, cache: str, config: Path | None) -> list[str]:
    """The wrapper's arguments: with flags in the form of v3.0, else in that of July."""
    configured = [] if config is None else ["--config", str(config)]
    configured += [] if plan.reclaim is None else ["--reclaim", plan.reclaim]
    shortened = [] if plan.shorten_s is None else [f"{plan.shorten_s:g}"]
    if not plan.flags:
        words = ["--option", str(option), "--base-output-dir", str(output), "--cache-dir", cache]
        words += ["--seed", str(plan.seed), *configured]
        return [*words, *(["--shorten", *shortened] if shortened else [])]
    words = ["--rank-output-base", str(output), "--rank-cache-base", cache]
    words += ["--seed-base", str(plan.seed), *configured, *_option_flags(option), *plan.flags]
    if shortened:
        why = f"--shorten ends the window after {shortened[0]} s"
        words += ["--duration", *shortened, "--not-submittable", why]
    return words


def _option_flags(option: int) -> list[str]:
    known = MLPERF_OPTIONS[option]
    flags = {
        "model": known.model,
        "num-users": known.users,
        "duration": f"{known.duration_s:g}",
        "gpu-mem-gb": known.gpu_mem_gib,
        "cpu-mem-gb": known.cpu_mem_gib,
        "max-concurrent-allocs": known.max_concurrent_allocs,
        "generation-mode": known.generation_mode,
    }
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


# --- places ----------------------------------------------------------------------------------


def _same_filesystem(cache: str, results: Path) -> bool:
    """Also where one is a subvolume or a bind mount of the other's file system."""
    if "://" in cache:
        return False
    one, other = _existing(Path(cache)), _existing(results)
    if os.stat(one).st_dev == os.stat(other).st_dev:
        return True
    mounts = [filesystem(Reader(), path) for path in (one, other)]
    source, kind = mounts[0]["source"], mounts[0]["type"]
    return "/" in str(source) and (mounts[1]["source"], mounts[1]["type"]) == (source, kind)


def _existing(path: Path) -> Path:
    real = Path(os.path.realpath(path))
    return next(parent for parent in (real, *real.parents) if parent.exists())


def _create(place: Place, config: Path | None) -> Path | None:
    """The directory of the sequence, with a copy of the configuration: its path."""
    try:
        place.run.mkdir(parents=True)
        if config is None:
            return None
        kept = place.run / CONFIG
        write_atomically(kept, config.read_bytes())
        return Path(os.path.abspath(kept))
    except OSError as error:
        raise PlaceError(
            f"--results-dir: {error.filename} cannot be made ({error.strerror}); name another"
        ) from None


# --- the record ------------------------------------------------------------------------------


def _record(plan: Plan, place: Place, cache: str, results: Path, together: bool) -> dict[str, Any]:
    where = {"path": cache} if "://" in cache else _described(Path(cache))
    own: dict[str, Any] = {
        "program_version": __version__,
        "division": plan.division,
        "org": place.org,
        "system": place.system,
        "status": RUNNING,
        "not_submittable": [],
        "started_utc": _now(),
        "ended_utc": None,
        "config": plan.to_json(),
        "environment": {
            "hostname": os.uname().nodename,
            "cache": where,
            "results": _described(results),
            "same_filesystem": together,
        },
        "trials": [],
    }
    if plan.shorten_s is not None:
        why = f"not to be submitted: --shorten ends each window after {plan.shorten_s:g} s"
        own["not_submittable"] = [f"{why}, where the options have {_longest():g} s"]
    return own


def _described(path: Path) -> dict[str, Any]:
    return {"path": str(path), **filesystem(Reader(), path)}


def _keep(sequence: Running) -> None:
    """Write the record. That it cannot be written ends nothing: the results are what counts."""
    try:
        write_manifest(sequence.place, sequence.own)
    except OSError as error:
        _say(f"the record of the sequence could not be written: {error}")


def _now() -> str:
    return datetime.now(UTC).isoformat()


# --- the sequence ----------------------------------------------------------------------------


def _options(sequence: Running) -> None:
    plan, caught = sequence.plan, sequence.caught
    for number, option in enumerate(plan.options):
        if number and not _rest(sequence):
            return
        for trial in range(plan.trials):
            row = _trial(sequence, option, trial)
            sequence.own["trials"].append(row)
            _keep(sequence)
            if caught.came or Exit.REFUSED in row["exit_codes"]:
                return
            if not row["complete"]:
                _say(f"option {option} is given up: {row['says']}")
                break


def _rest(sequence: Running) -> bool:
    """Between options; false where a signal came."""
    ends = time.monotonic() + sequence.plan.option_delay_s
    while (left := ends - time.monotonic()) > 0 and not sequence.caught.came:
        _show(sequence, f"resting {left:.0f} s")
        sequence.caught.stop.wait(min(_POLL_S, left))
    return not sequence.caught.came


def _trial(sequence: Running, option: int, trial: int) -> dict[str, Any]:
    """One trial, from start to end: its row of the record."""
    plan = sequence.plan
    directory = trial_directory(sequence.place.run, option, trial)
    directory.mkdir(parents=True)
    title = f"option {option} {MLPERF_OPTIONS[option].name}, trial {trial + 1} of {plan.trials}"
    _say(f"{title}, {plan.ranks} client{'s' * (plan.ranks > 1)}, about {plan.window_s(option):g} s")
    began, started = time.monotonic(), _now()
    output = Path(os.path.abspath(directory))
    words = _words(plan, option, output, sequence.cache, sequence.config)
    with ExitStack() as files:
        children = list(_start(plan, directory, words, files))
        codes = _wait(sequence, children, title, option)
    if any(codes) and (plan.launch or -signal.SIGKILL in codes):
        _await_late(directory, plan.ranks)
    took = time.monotonic() - began
    if not any(codes):
        sequence.took_s.append(max(0.0, took - plan.window_s(option)))
    says = _incomplete(directory, plan.ranks, codes, bool(plan.launch))
    if says is not None:
        _say(f"{title}: incomplete: {says}")
        _say(_last_words(directory))
    return {
        "option": option, "trial": trial, "started_utc": started, "ended_utc": _now(),
        "arguments": words, "exit_codes": codes, "complete": says is None, "says": says,
        "left_in_cache": _left(sequence.cache),
    }  # fmt: skip


def _start(
    plan: Plan, directory: Path, words: Sequence[str], files: ExitStack
) -> Iterator["subprocess.Popen[bytes]"]:
    """The ranks of a trial, or the launcher of all of them. Each is in a session of its own: the
    terminal's signals are ours to pass on."""
    wrapper = [str(_WRAPPER)] if _WRAPPER.is_file() else ["-c", _INSTALLED]
    command = [*plan.launch, sys.executable, *wrapper, *words]
    starts = [("launch", None)] if plan.launch else [
        (f"rank_{rank}", _environment(rank, plan.ranks)) for rank in range(plan.ranks)
    ]  # fmt: skip
    for name, environment in starts:
        log = files.enter_context((directory / f"{name}.log").open("wb"))
        try:
            yield subprocess.Popen(
                tied(command), env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise PlaceError(f"{command[0]} cannot be started: {error.strerror}") from None


def _environment(rank: int, ranks: int) -> dict[str, str]:
    """Told as MPICH tells it; a launcher that we ourselves run under is not theirs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    told = {"PMI_RANK": rank, "PMI_SIZE": ranks, "MPI_LOCALNRANKS": ranks}
    return kept | {name: str(value) for name, value in told.items()}


def _wait(
    sequence: Running, children: "Sequence[subprocess.Popen[bytes]]", title: str, option: int
) -> list[int]:
    """Until all have ended; the exit codes. After a signal, or once one has failed, the others are
    ended: their trial cannot become complete any more."""
    began, ended = time.monotonic(), None
    while None in [child.poll() for child in children]:  # all are looked at
        elapsed = time.monotonic() - began
        _show(sequence, f"{title}: {elapsed:.0f} s of about {sequence.plan.window_s(option):g} s",
              elapsed, option)  # fmt: skip
        failed = any(child.returncode for child in children)
        if ended is None and (sequence.caught.came or failed):
            ended = time.monotonic()
            _signal(children, sequence.caught.number or signal.SIGTERM)
        patience_s = 0 if sequence.signals > 1 else _PATIENCE_S
        if ended is not None and time.monotonic() - ended > patience_s:
            _signal(children, signal.SIGKILL)
        time.sleep(_POLL_S / 2) if sequence.caught.came else sequence.caught.stop.wait(_POLL_S)
    return [child.returncode for child in children]


def _signal(children: "Sequence[subprocess.Popen[bytes]]", number: int) -> None:
    for child in children:
        if child.poll() is None:
            with suppress(ProcessLookupError):
                child.send_signal(number)


def _await_late(directory: Path, ranks: int) -> None:
    """Ranks write their results after the mpirun that was ended is gone."""
    ends = time.monotonic() + _LATE_S
    while _written(directory, ranks) < ranks and time.monotonic() < ends:
        time.sleep(_POLL_S)


def _written(directory: Path, ranks: int) -> int:
    return sum(bool(results_in(directory / f"rank_{rank}")) for rank in range(ranks))


def _incomplete(directory: Path, ranks: int, codes: Sequence[int], launched: bool) -> str | None:
    """Why a trial is not complete, by the name of each rank."""
    failed = [
        f"{'the launcher' if launched else f'rank {n}'} ended with exit code {code}"
        for n, code in enumerate(codes)
        if code
    ]
    missing = [n for n in range(ranks) if not results_in(directory / f"rank_{n}")]
    if missing:
        failed.append(f"rank {', '.join(map(str, missing))} left no result")
    return "; ".join(failed) or None


def _last_words(directory: Path) -> str:
    """The end of the first log that has one."""
    for path in sorted(directory.glob("*.log")):
        lines = path.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        if lines:
            return f"{path.name} ends with: {lines[-1]}"
    return f"the logs in {directory} are empty"


def _left(cache: str) -> int:
    """Files that the ranks of this machine left below the cache directory."""
    if "://" in cache:
        return 0
    ranks = Path(cache).glob("rank_*")
    return sum(len(names) for rank in ranks for _, _, names in os.walk(rank))


# --- the end ---------------------------------------------------------------------------------


def _conclude(sequence: Running, stamp: str) -> int:
    """What there is, told and sealed; the exit code."""
    own, plan = sequence.own, sequence.plan
    wanted = len(plan.options) * plan.trials
    whole = len(own["trials"]) == wanted and all(row["complete"] for row in own["trials"])
    own["status"] = FINISHED if whole else INCOMPLETE
    if sequence.caught.came:
        own["status"] = INTERRUPTED
    own["ended_utc"] = _now()
    _keep(sequence)
    code: int = Exit.EARLY
    if _any_option(sequence.place):
        tree = read_tree(sequence.place.run)
        _write_beside(sequence, tree, stamp)
        _keep(sequence)
        print_plain(terminal(submission_view(plain(summarize(tree)))))
        code = Exit.EARLY if tree.flaws or not whole else Exit.DONE
    if own["status"] != FINISHED:
        _say(f"the sequence is {own['status']}; what was measured is kept in {sequence.place.run}")
    usage = any(Exit.REFUSED in row["exit_codes"] for row in own["trials"])
    return sequence.caught.exit_code or (Exit.REFUSED if usage else code)


def _any_option(place: Place) -> bool:
    return any(place.run.glob("option_*"))


def _write_beside(sequence: Running, tree: Tree, stamp: str) -> None:
    """The launcher's summary, and the description of the system where none stands."""
    hosts = {result.hostname: result.environment for result in tree.ranks}
    summary = sequence.place.run / f"{SUMMARY}{stamp}.json"
    description = sequence.place.description
    try:
        write_atomically(summary, as_json(run_summary(tree, stamp)))
        if description is not None:
            system = sequence.place.system or "-"
            write_description(description, describe(system, list(hosts.values())))
    except OSError as error:
        _say(f"{error.filename} could not be written: {error.strerror}")


# --- telling ---------------------------------------------------------------------------------


def _say(text: str) -> None:
    tqdm.write("".join(c if c.isprintable() else "?" for c in text), file=sys.stderr)


def _show(sequence: Running, text: str, elapsed: float = 0.0, option: int | None = None) -> None:
    """The bar: what is running, and how long it will still take."""
    took = sequence.took_s
    beside = sum(took) / len(took) if took else _OVERHEAD_S
    plan, done = sequence.plan, len(sequence.own["trials"])
    each = [plan.window_s(o) + beside for o in plan.options for _ in range(plan.trials)]
    rests = len({row["option"] for row in sequence.own["trials"]}) if done else 0
    whole = sum(each) + plan.option_delay_s * (len(plan.options) - 1)
    left = sum(each[done:]) + plan.option_delay_s * max(0, len(plan.options) - max(1, rests))
    left = max(0.0, left - elapsed)
    sequence.bar.to(max(0.0, min(1.0, 1 - left / whole)) if whole else 0.0)
    minutes = f"{left / 60:.0f} min" if left > 90 else f"{left:.0f} s"
    sequence.bar.note(f"{text}; about {minutes} left")
