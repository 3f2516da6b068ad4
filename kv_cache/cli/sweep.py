"""`kv-cache.py sweep GRID.yaml --results-dir D`: a whole run for each cell of a grid.

Each run is a child process with a directory of its own below D, which holds its configuration,
log, result and exit code. What is in these directories is the truth: a sweep that is started again
keeps the runs that finished with a result that is intact, and does the others. Under mpirun the
runs are spread over the other ranks through `mpi4py.futures`.
"""

import argparse
import fcntl
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import orjson

import kv_cache
from kv_cache.app.prepare import prepare
from kv_cache.app.sweep_document import (
    DOCUMENT,
    TABLE,
    cell_row,
    run_row,
    sweep_csv,
    sweep_document,
    sweep_text,
)
from kv_cache.bench.cache_dir import check_name
from kv_cache.bench.interrupts import Interrupts, interrupts
from kv_cache.bench.places import check_places
from kv_cache.bench.sizing import size_tiers
from kv_cache.cli.parsing import CommandParser
from kv_cache.cli.printing import print_unwritten
from kv_cache.cli.progress import TerminalProgress
from kv_cache.cli.run import begin_logging
from kv_cache.config.grid import Cell, Grid, read_grid, told
from kv_cache.config.load import Invocation, read_yaml
from kv_cache.config.root import Config
from kv_cache.config.schema import print_config, show
from kv_cache.core.errors import ConfigError, PlaceError, UsageError
from kv_cache.core.exits import Exit
from kv_cache.core.seed import fresh_seed
from kv_cache.core.text import as_json
from kv_cache.crew.child_processes import tied
from kv_cache.crew.launched import rank_of
from kv_cache.files.keep import keep
from kv_cache.files.reading import SECTION, require_intact, result_bytes
from kv_cache.files.writing import write_atomically, write_document
from kv_cache.installing import install_hint
from kv_cache.result.chain import check, file_digest
from kv_cache.result.sweep import SCHEMA
from kv_cache.result.trials import trial_seed
from kv_cache.result.verdicts import FINISHED
from kv_cache.view.picture.plot import plot_beside

MOST_JOBS = 256
_LOCK = ".kv-cache-sweep.lock"
_CONFIG, _RESULT, _LOG, _CODE = "cell.yaml", "result.json", "log.txt", "exit_code"
_WRITE_S = 2.0  # the document is written again at most so often while runs go on
_LOOK_S = 1.0
_PATIENCE_S = 10.0  # with ranks that were interrupted too, and may be gone
_OF_RANKS = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
_TAIL_BYTES, _LONGEST_SAYS = 4096, 300

log = logging.getLogger("kv_cache")

_ABOUT = """\
Run every cell of a grid: options that vary, each value with each other, several times each.

  config: site.yaml             # a configuration file or a shipped one; may be left out
  base: {run.duration_s: 60}    # options over it
  vary:
    run.num_users: [10, 50]
    io.threads: [4, 8, 16]
  zip: {}                       # lists of the same length, which change together
  exclude: [{run.num_users: 10, io.threads: 16}]
  repeat: 3                     # run k of every cell has the same seed
  seed: 42

All cells are checked before the first one runs. Started again with the same grid and D, the sweep
goes on where it stopped.
"""

_EXAMPLES = """\
examples:
  kv-cache.py sweep grid.yaml --results-dir threads
  mpirun -n 5 python kv-cache.py sweep grid.yaml --results-dir threads

exit code: 0 all runs finished, 1 some failed, 2 bad input, 130 and 143 interrupted
"""


def main(argv: Sequence[str]) -> int:
    """Sweep; the exit code. UsageError is the caller's to print."""
    rank = rank_of(os.environ)
    if rank.ranks == 1 or any(word in ("-h", "--help") for word in argv):
        return _sweep(_options(argv), _locally) if not rank.rank else 0
    pool = _mpi(rank.rank)
    return Exit.REFUSED if pool is None else pool(argv)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="kv-cache.py sweep",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("grid", type=Path, metavar="GRID.yaml", help="what varies")
    parser.add_argument(
        "--results-dir", type=Path, required=True, metavar="D",
        help="new, empty, or of the same sweep, which is then continued",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N",
        help="runs at the same time. More than 1 only for virtual time: runs of real I/O disturb "
        "each other, which is then noted in the result [default 1]",
    )  # fmt: skip
    parser.add_argument("--many", action="store_true", help="allow more than 10,000 runs")
    options = parser.parse_args(list(argv))
    if not 1 <= options.jobs <= MOST_JOBS:
        raise ConfigError(f"--jobs {options.jobs} is not in 1 to {MOST_JOBS}")
    return options


# --- checking --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a cell. `directory` is its own, below the results' directory."""

    cell: Cell
    trial: int
    seed: int
    directory: Path

    def __str__(self) -> str:
        return f"{told(self.cell)}, run {self.trial}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checked sweep. `runs` go through all cells before the second run of any, so that whatever
    changes slowly changes all of them alike."""

    grid: Grid
    place: Path
    seed: int
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    real: bool  # whether any cell does real I/O

    def config_of(self, run: Run) -> Config:
        return self.grid.config_of(run.cell, run.seed)


def _plan(options: argparse.Namespace) -> Plan:
    """Everything that can be known to be wrong with the grid and its place; writes nothing. Raises
    UsageError."""
    grid = read_grid(options.grid, many=options.many)
    place: Path = options.results_dir
    before = _before(place)
    seed = grid.seed
    if before is not None:
        _require_same(before, grid, place)
        seed = int(before["seed"])
    seed = fresh_seed() if seed is None else seed
    cells = tuple(grid.cells())
    runs = tuple(
        Run(
            cell=cell,
            trial=trial,
            seed=trial_seed(seed, trial),
            directory=place / cell.name / f"trial{trial}",
        )
        for trial in range(1, grid.repeat + 1)
        for cell in cells
    )
    plan = Plan(grid=grid, place=place, seed=seed, cells=cells, runs=runs, real=False)
    plan = replace(plan, real=_check_cells(plan, runs[: len(cells)]))
    for run in runs if before is not None else ():
        _require_as_it_was(run, plan)
    return plan


def _check_cells(plan: Plan, firsts: Sequence[Run]) -> bool:
    """Each cell as `run` would; cells that ask the same trace have it read once. Whether any does
    real I/O."""
    seen: set[bytes] = set()
    real = False
    with (
        tempfile.TemporaryDirectory(prefix="kv-cache-sweep-") as scratch,
        TerminalProgress().bar("checking", unit="cells", total=len(firsts)) as bar,
    ):
        for number, run in enumerate(firsts):
            bar.to(number)
            config = plan.config_of(run)
            real = real or not config.run.virtual_time
            asked = _asked(config)
            try:
                if asked is None or asked not in seen:
                    prepare(_invocation(plan.grid, run, Path(scratch)).config())
                elif not config.run.virtual_time:
                    check_places(size_tiers(config)[0])
            except UsageError as error:
                raise UsageError(f"{plan.grid.source}, {told(run.cell)}: {error}") from None
            if asked is not None:
                seen.add(asked)
    return real


def _asked(config: Config) -> bytes | None:
    """What a trace is read with; None without one."""
    if config.trace_path() is None:
        return None
    return repr((config.workload, config.tiers, config.run.model, config.run.virtual_time)).encode()


def _invocation(grid: Grid, run: Run, scratch: Path) -> Invocation:
    path = None if grid.config is None else Path(grid.config)
    own = {"run.seed": run.seed, "output.output": str(scratch / _RESULT), "output.progress": False}
    overrides = {**grid.base, **run.cell.values, **own}
    return Invocation(config_path=path, overrides=overrides)


def _before(place: Path) -> Mapping[str, Any] | None:
    """The sweep that is there, to be continued; None where the place is new or empty. Raises
    PlaceError for anything else, UsageError for a document that was changed."""
    where = f"--results-dir {place}"
    check_name(place / DOCUMENT, where)
    try:
        if not place.exists():
            if not place.parent.is_dir():
                raise PlaceError(f"{where}: there is no directory {place.parent}; create it first")
            _require_writable(place.parent, where)
            return None
        if not place.is_dir():
            raise PlaceError(f"{where}: it is no directory; name a new or an empty one")
        names = sorted(entry.name for entry in place.iterdir() if entry.name != _LOCK)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PlaceError(f"{where}: it cannot be looked at ({reason}); name another") from None
    _require_writable(place, where)
    if DOCUMENT not in names:
        if names:
            raise PlaceError(
                f"{where}: it holds {show(names[0])} and no {DOCUMENT}, so it is no sweep of ours; "
                "name a new or an empty directory"
            )
        return None
    return _document(place / DOCUMENT, where)


def _require_writable(directory: Path, where: str) -> None:
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PlaceError(f"{where}: {directory} is not writable; name another directory")


def _document(path: Path, where: str) -> Mapping[str, Any]:
    try:
        document: Any = orjson.loads(result_bytes(path))
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{where}: {path.name} there is not JSON ({error}); name a new or an empty directory"
        ) from None
    own = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(own, dict) or own.get("schema") != SCHEMA:
        raise PlaceError(
            f"{where}: {path.name} there is no document of a sweep; name a new or empty directory"
        )
    require_intact(document, path)
    return own


def _require_same(before: Mapping[str, Any], grid: Grid, place: Path) -> None:
    """The sweep that is there is of the same program and grid. Raises ConfigError."""
    if before["program_version"] != kv_cache.__version__:
        raise ConfigError(
            f"--results-dir {place}: the sweep there was begun by version "
            f"{before['program_version']}, and this is {kv_cache.__version__}; finish it with "
            "that, or name a new directory"
        )
    given = orjson.loads(orjson.dumps(grid.given))
    changed = _difference(before["grid"], given)
    if changed is not None:
        name, was, now = changed
        raise ConfigError(
            f"{grid.source}: {name} was {was} when the sweep in {place} was begun, and is {now}; "
            "name a new --results-dir, or give the grid as it was"
        )


def _require_as_it_was(run: Run, plan: Plan) -> None:
    """The configuration that a run was begun with is the one it would have now."""
    path = run.directory / _CONFIG
    if not path.exists():
        return
    text = print_config(plan.config_of(run))
    if path.read_text(encoding="utf-8") == text:
        return
    with tempfile.TemporaryDirectory(prefix="kv-cache-sweep-") as scratch:
        now = Path(scratch) / _CONFIG
        now.write_text(text, encoding="utf-8")
        changed = _difference(read_yaml(path), read_yaml(now))
    name, was, value = changed or ("its text", "another", "different")
    raise ConfigError(
        f"{plan.grid.source}, {run}: {name} was {was} when the sweep was begun, and is {value} "
        f"({path}); name a new --results-dir, or give {plan.grid.config} as it was"
    )


def _difference(was: Any, now: Any, path: str = "") -> tuple[str, str, str] | None:
    """The first place where two trees of plain values differ, with both values."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*was, *now]):
            found = _difference(was.get(key), now.get(key), f"{path}.{key}" if path else str(key))
            if found is not None:
                return found
        return None
    return None if was == now else (path, show(was), show(now))


# --- running ---------------------------------------------------------------------------------

Submit = Callable[[str], "Future[int | None]"]


class Children:
    """Runs that go on as processes of their own; a signal is passed on to all of them."""

    def __init__(self, caught: Interrupts) -> None:
        self._caught = caught
        self._alive: set[subprocess.Popen[bytes]] = set()
        caught.on_signal = self._pass_on

    def run(self, directory: str) -> int | None:
        """One run to its end; the exit code, as a shell says it. None where a signal had come."""
        if self._caught.came:
            return None
        place = Path(directory)
        with (place / _LOG).open("ab") as told_to:
            code = self._child(place, told_to)
        write_atomically(place / _CODE, f"{code}\n".encode())
        return code

    def _child(self, place: Path, told_to: IO[bytes]) -> int:
        command = [
            *(sys.executable, "-m", "kv_cache.cli", "run", "--no-progress"),
            *("--config", str(place / _CONFIG), "--output", str(place / _RESULT)),
        ]
        process = subprocess.Popen(
            tied(command), stdin=subprocess.DEVNULL, stdout=told_to, stderr=told_to,
            env=_environment(),
        )  # fmt: skip
        self._alive.add(process)
        try:
            if self._caught.came:  # between the look above and now
                self._tell(process)
            code = process.wait()
        finally:
            self._alive.discard(process)
        return code if code >= 0 else 128 - code

    def _pass_on(self) -> None:
        for process in list(self._alive):
            self._tell(process)

    def _tell(self, process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(self._caught.number or 0)


def _environment() -> dict[str, str]:
    """A run is started by nobody's launcher, and finds the program where this one was found."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_RANKS) and name not in ("MPI_LOCALNRANKS", "SLURM_PROCID")
    }
    root = str(Path(kv_cache.__file__).resolve().parents[1])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH")]))
    return kept


def run_remote(directory: str) -> int | None:
    """One run, in a rank that serves the sweep."""
    with interrupts() as caught:
        return Children(caught).run(directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Where runs are done: so many at once. `gone` says that it may not answer after a signal."""

    submit: Submit
    workers: int
    gone: bool = False


@contextmanager
def _locally(options: argparse.Namespace, caught: Interrupts) -> Iterator[Pool]:
    children = Children(caught)
    with ThreadPoolExecutor(options.jobs) as threads:
        yield Pool(submit=lambda directory: threads.submit(children.run, directory),
                   workers=options.jobs)  # fmt: skip


def _mpi(rank: int) -> Callable[[Sequence[str]], int] | None:
    """What this rank does; None for one that has nothing to say where there is no MPI."""
    served = "mpi4py.futures" in sys.modules  # python -m mpi4py.futures: the others serve already
    try:
        futures, mpi = import_module("mpi4py.futures"), import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        if rank:
            return None
        raise UsageError(
            f"sweep was started as several ranks, but mpi4py cannot be used ({error}); get it with "
            f"{install_hint('mpi')}, or start one process and give --jobs"
        ) from None
    if served:
        return lambda argv: _as_root(argv, futures.MPIPoolExecutor())

    def join(argv: Sequence[str]) -> int:
        with futures.MPICommExecutor(mpi.COMM_WORLD, root=0) as executor:
            return 0 if executor is None else _as_root(argv, executor)

    return join


def _as_root(argv: Sequence[str], executor: Any) -> int:
    """The rank that plans, and hands out runs to all others."""

    @contextmanager
    def pool(options: argparse.Namespace, caught: Interrupts) -> Iterator[Pool]:
        yield Pool(
            submit=lambda directory: executor.submit(run_remote, directory),
            workers=executor.num_workers, gone=True,
        )  # fmt: skip

    try:
        options = _options(argv)
        if options.jobs != 1:
            raise ConfigError(
                "--jobs has no use under mpirun: each other rank is one; leave it out"
            )
        return _sweep(options, pool)
    except UsageError as error:  # said here, as the ranks that serve must be let go all the same
        print(f"kv-cache: {error}", file=sys.stderr)
        return Exit.REFUSED


# --- a sweep ---------------------------------------------------------------------------------


def _sweep(options: argparse.Namespace, pool: Any) -> int:
    """Raises UsageError."""
    begin_logging()
    plan = _plan(options)
    with _locked(plan.place), interrupts() as caught, pool(options, caught) as found:
        return _Sweep(plan, found, caught).run()


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """The place is ours alone. Raises PlaceError."""
    try:
        place.mkdir(exist_ok=True)
        file = (place / _LOCK).open("wb")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PlaceError(f"--results-dir {place}: it cannot be written ({reason})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PlaceError(
                f"--results-dir {place}: another sweep works there; wait for it, or name another"
            ) from None
        except OSError as error:  # a file system without locks
            log.warning("--results-dir %s cannot be locked (%s)", place, error.strerror)
        yield


class _Sweep:
    """Does the runs that are missing, and keeps the document of all."""

    def __init__(self, plan: Plan, pool: Pool, caught: Interrupts) -> None:
        self._plan, self._pool, self._caught = plan, pool, caught
        self._rows: dict[tuple[int, int], dict[str, Any]] = {}
        self._digest = hashlib.sha256()
        self._written_at = 0.0
        self._notes = list(self._disturbed())

    def _disturbed(self) -> Iterator[str]:
        if self._plan.real and self._pool.workers > 1:
            note = (
                f"{self._pool.workers} runs of real I/O go on at the same time: unless each has a "
                "machine and a drive of its own they disturb each other"
            )
            log.warning(note)
            yield note

    def run(self) -> int:
        try:
            left = self._prepare()
            self._write()  # before any cell has a directory: a sweep that is killed can go on
            self._make(left)
        except OSError as error:
            log.error("the sweep could not be written: %s", error)
            return Exit.EARLY
        try:
            self._do(left)
            document = self._write()
        except OSError as error:
            return self._elsewhere(error)
        print(sweep_text(document, self._plan.place))
        if not self._caught.came and (picture := plot_beside(document, self._path(DOCUMENT))):
            print(f"plot    {picture}")
        code = self._caught.exit_code or (Exit.EARLY if document[SECTION]["failed"] else 0)
        if self._caught.came and self._pool.gone:
            sys.stdout.flush()
            os._exit(code)  # mpirun has ended the others: nobody would answer a farewell
        return code

    def _elsewhere(self, error: OSError) -> int:
        """What the runs that are there have found, where its directory cannot be written."""
        document = self._document()
        kept = keep(self._path(DOCUMENT), as_json(document), "document of the sweep")
        log.error("the sweep has ended early: %s", error)
        print(sweep_text(document, self._plan.place, kept.shown))
        print_unwritten(kept)
        return Exit.EARLY

    def _path(self, name: str) -> Path:
        return self._plan.place / name

    def _prepare(self) -> list[Run]:
        """The runs that are still to be done, with a row for each of all."""
        left = []
        for run in self._plan.runs:
            text = print_config(self._plan.config_of(run)).encode()
            self._digest.update(text)
            row = self._kept(run)
            self._rows[run.cell.number, run.trial] = row or self._row(run)
            if row is None:
                left.append(run)
        if len(left) < len(self._plan.runs):
            log.info("%d of %d runs are there", len(self._plan.runs) - len(left), len(self._rows))
        return left

    def _make(self, left: Sequence[Run]) -> None:
        """Their directories and configurations."""
        for run in left:
            run.directory.mkdir(parents=True, exist_ok=True)
            if not (run.directory / _CONFIG).exists():
                text = print_config(self._plan.config_of(run)).encode()
                write_atomically(run.directory / _CONFIG, text)

    def _row(self, run: Run, **found: Any) -> dict[str, Any]:
        directory = str(run.directory.relative_to(self._plan.place))
        return run_row(run.trial, run.seed, directory, **found)

    def _kept(self, run: Run) -> dict[str, Any] | None:
        """The row of a run that was done before, if it finished and its result is intact."""
        try:
            code = int((run.directory / _CODE).read_bytes())
        except (OSError, ValueError):
            return None
        row = self._read(run, code)
        return row if row["status"] == FINISHED else None

    def _read(self, run: Run, code: int, before_ns: int | None = None) -> dict[str, Any]:
        path = run.directory / _RESULT
        if _changed_ns(path) == before_ns:  # no result, or only that of an earlier attempt
            return self._row(run, exit_code=code, says=_last_words(run.directory / _LOG))
        try:
            document = orjson.loads(result_bytes(path))
            sound = not check(document, {}) and document[SECTION]["seed"] == run.seed
        except (UsageError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            return self._row(run, exit_code=code or Exit.EARLY, says=f"its result: {error}")
        if not sound:
            changed = "its result was changed after the run"
            return self._row(run, exit_code=code or Exit.EARLY, says=changed)
        says = None if code == 0 else _last_words(run.directory / _LOG)
        return self._row(
            run, exit_code=code, document=document, sha256=file_digest(path), says=says
        )

    def _do(self, left: Sequence[Run]) -> None:
        before = {run.directory: _changed_ns(run.directory / _RESULT) for run in left}
        for run in left:
            (run.directory / _CODE).unlink(missing_ok=True)
        if self._caught.came:
            return
        done = 0
        futures = {self._pool.submit(str(run.directory)): run for run in left}
        with TerminalProgress().bar("sweep", unit="runs", total=len(left)) as shown:
            for future in self._ended(futures, lambda: shown.note("sweep")):
                run = futures[future]
                code = None if future.cancelled() else self._code(future, run)
                if code is None:
                    continue
                row = self._read(run, code, before[run.directory])
                self._rows[run.cell.number, run.trial] = row
                done += 1
                shown.to(done)
                log.info("%s: %s", run, row["verdict"] or row["says"] or row["status"])
                if time.monotonic() - self._written_at >= _WRITE_S:
                    self._write()

    def _code(self, future: "Future[int | None]", run: Run) -> int | None:
        error = future.exception()
        if error is None:
            return future.result()
        log.error("%s could not be started: %s", run, error)
        return Exit.EARLY

    def _ended(
        self, futures: Mapping["Future[int | None]", Run], waiting: Callable[[], object]
    ) -> Iterator["Future[int | None]"]:
        """As they end; `waiting` is called about once a second. A signal is written down at once:
        mpirun may end us soon after it. From then on none begins, and those that may be gone are
        not waited for for ever."""
        ended: SimpleQueue[Future[int | None] | None] = SimpleQueue()
        pass_on = self._caught.on_signal

        def woken() -> None:
            pass_on()
            ended.put(None)

        self._caught.on_signal = woken
        for future in futures:
            future.add_done_callback(ended.put)
        left = len(futures)
        while left:
            last = self._caught.came
            try:
                found = ended.get(timeout=_PATIENCE_S if last else _LOOK_S)
            except Empty:
                waiting()
                if last and self._pool.gone:
                    return
                continue
            if found is not None:
                left -= 1
                yield found
                continue
            self._write()
            for future in futures:
                future.cancel()

    def _write(self) -> dict[str, Any]:
        document = self._document()
        write_document(self._path(DOCUMENT), document)
        write_atomically(self._path(TABLE), sweep_csv(document))
        self._written_at = time.monotonic()
        return document

    def _document(self) -> dict[str, Any]:
        plan = self._plan
        cells = [
            cell_row(
                cell.number,
                cell.name,
                cell.values,
                [self._rows[cell.number, trial] for trial in range(1, plan.grid.repeat + 1)],
            )
            for cell in plan.cells
        ]
        return sweep_document(
            plan.grid.given, cells, source=plan.grid.source, paths=plan.grid.paths, seed=plan.seed,
            repeat=plan.grid.repeat, digest=self._digest.hexdigest(), workers=self._pool.workers,
            interrupted=self._caught.name, notes=self._notes,
        )  # fmt: skip


def _changed_ns(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _last_words(path: Path) -> str | None:
    """The last line of a log that says something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return None
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return None
    return "".join(c if c.isprintable() else "?" for c in said[-1])[:_LONGEST_SAYS]
