"""What a sequence of MLPerf's KV-cache benchmark will run: everything that can be wrong with the
input is found here, before the first rank.
"""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache.app.mlperf_rank import RankCall, rank_config, rank_start
from kv_cache.app.prepare import prepare
from kv_cache.bench.path_checks import nearest_existing
from kv_cache.config.load import config_file
from kv_cache.config.mlperf import MLPERF_OPTIONS, OPTION_DELAY_S, SEED, TRIALS
from kv_cache.config.schema import opt, same_option
from kv_cache.config.sections import TiersConfig
from kv_cache.core.errors import ConfigError
from kv_cache.core.mpirank import MpiRank
from kv_cache.files.environment import Reader, filesystem, same_filesystem
from kv_cache.mlperf.layout import DIVISIONS, NOBODY, Place, as_name, new_place, require_empty
from kv_cache.mlperf.manifest import MOST_RANKS, MOST_TRIALS
from kv_cache.mlperf.plan import (
    CLOSED,
    OPEN,
    Deviation,
    Plan,
    Variables,
    deviations,
    longest_window_s,
    ranks_of_launch,
)
from kv_cache.result.counted import Json

_SECRET = re.compile(r"(AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN))=")
_FROM_THE_SEQUENCE = {
    "output.output": "the tree has a place for each result",
    "tiers.cache_dir": "give --cache-dir before the --",
    "run.seed": "give --seed before the --",
    "run.trials": "give --trials before the --",
    "tiers.reclaim": "give --reclaim before the --",
    "output.fail_on": "its exit code would end the trial; mlperf check judges all of them",
    "tiers.keep_cache": "the next trial begins with an empty cache",
}


@dataclass(frozen=True, kw_only=True)
class SequenceOptions:
    """What a sequence runs, on which storage, and where its results go."""

    results_dir: str = opt(
        "-", "A new or empty directory for the tree", flag="--results-dir", metavar="DIR",
        required=True,
    )  # fmt: skip
    cache_dir: str = opt(
        "-", "On the storage under test; client r has DIR/rank_<r>", flag="--cache-dir",
        metavar="DIR", required=True,
    )  # fmt: skip
    reclaim: str | None = same_option(TiersConfig, "reclaim")
    division: str | None = opt(
        None, "What is allowed; if not given, closed, with --shorten open", choices=DIVISIONS,
        flag="--division",
    )  # fmt: skip
    option: tuple[int, ...] = opt(
        (), "Only this option; may be repeated; if not given, all three",
        choices=tuple(MLPERF_OPTIONS), flag="--option",
    )  # fmt: skip
    trials: int = opt(
        TRIALS, "Repeats of each option", low=1, high=MOST_TRIALS, flag="--trials", metavar="N"
    )
    clients: int | None = opt(
        None, "Clients at a time: processes on this machine, if not given, 1; or those that "
        "--launch starts", low=1, high=MOST_RANKS, flag="--clients", metavar="N",
    )  # fmt: skip
    launch: str | None = opt(
        None, "What starts the clients: mpirun with its options", flag="--launch", metavar="WORDS"
    )
    seed: int = opt(
        SEED, "Seed of client 0; client r has S + r", low=0, high=2**32 - 1, flag="--seed",
        metavar="S",
    )  # fmt: skip
    option_delay: float | None = opt(
        None, f"Rest between options; if not given, {OPTION_DELAY_S:g}, with --shorten in "
        "proportion", unit="s", low=0, high=86_400, flag="--option-delay", metavar="S",
    )  # fmt: skip
    shorten: float | None = opt(
        None, "Measure S seconds where the rules want 300, to try it out: not to be submitted",
        unit="s", above=0, high=86_400, flag="--shorten", metavar="S",
    )  # fmt: skip
    config: str | None = opt(
        None, "YAML configuration below the rules' values (open only)", flag="--config",
        metavar="PATH",
    )  # fmt: skip
    system_name: str | None = opt(
        None, "Name of the system under test; if not given, the host's", flag="--system-name",
        metavar="NAME",
    )  # fmt: skip
    org: str = opt(NOBODY, "Who submits", flag="--org", metavar="NAME")
    flags: tuple[str, ...] = opt(
        (), "Flags of run for every client, after a -- (open only)", flag="FLAGS"
    )
    dry_run: bool = opt(
        False, "Check everything, print what would be done, and do nothing", flag="--dry-run"
    )


class RankProgram(Struct, frozen=True, kw_only=True):
    """The program that is a rank: the command that starts it, and how it reads its words."""

    command: tuple[str, ...]
    read: Callable[[Sequence[str]], RankCall]


class SequenceJob(Struct, frozen=True, kw_only=True):
    """A checked sequence: what it runs, where, and in what it is not as in CLOSED."""

    plan: Plan
    place: Place
    stamp: str
    cache: str
    config: Path | None
    environment: Json
    deviations: Sequence[Deviation]
    program: RankProgram


# --- the plan --------------------------------------------------------------------------------


def checked(
    options: SequenceOptions,
    *,
    command: Sequence[str],
    overrides: Mapping[str, Any],
    variables: Variables,
    program: RankProgram,
) -> SequenceJob:
    """Return the sequence that the options describe. Creates nothing. Raises UsageError.

    `command` is the call, word for word. `overrides` are what the flags of `run` and the
    environment's `variables` set.
    """
    plan = planned(options, command, variables)
    results = Path(options.results_dir)
    require_empty(results)
    config = config_file(None if options.config is None else Path(options.config))
    for path, why in _FROM_THE_SEQUENCE.items():
        if path in overrides:
            raise ConfigError(f"{path} cannot be given to the clients: {why}")
    existing = nearest_existing(results)
    for option in plan.options:
        call = program.read(plan.rank_words(option, existing, options.cache_dir, config))
        if call.invocation.dry_run:
            raise ConfigError("--dry-run cannot be given to the clients: give it before the --")
        _try(plan, call, existing)
    together = _same_filesystem(options.cache_dir, results)
    departures = deviations(plan, overrides, together, options.cache_dir)
    if plan.division == CLOSED and departures:
        listed = "; ".join(map(str, departures))
        raise ConfigError(
            f"--division closed refuses: {listed}; leave it out, or say --division open"
        )
    stamp = f"{datetime.now():%Y%m%d_%H%M%S}"
    system = as_name(options.system_name or os.uname().nodename)
    return SequenceJob(
        plan=plan,
        place=new_place(results, plan.division, as_name(options.org), system, stamp),
        stamp=stamp,
        cache=options.cache_dir,
        config=config,
        environment=_environment(options.cache_dir, results, together),
        deviations=departures,
        program=program,
    )


def planned(options: SequenceOptions, command: Sequence[str], variables: Variables) -> Plan:
    """Return what the options say of trials, ranks and divisions. Raises ConfigError."""
    if secret := _SECRET.search(options.launch or ""):
        raise ConfigError(
            f"--launch has {secret[1]} with its value, and the record keeps the line as it is; "
            f"export it, and give the name only (mpirun -x {secret[1]})"
        )
    launch = tuple(shlex.split(options.launch)) if options.launch else ()
    if launch and shutil.which(launch[0]) is None:
        raise ConfigError(f"--launch {launch[0]}: there is no such program; give what starts ranks")
    delay_s, shorten_s = OPTION_DELAY_S, options.shorten
    if shorten_s is not None:
        delay_s = min(delay_s, delay_s * shorten_s / longest_window_s())
    return Plan(
        division=options.division or (CLOSED if shorten_s is None else OPEN),
        options=tuple(sorted(set(options.option or MLPERF_OPTIONS))),
        trials=options.trials,
        ranks=_ranks(options.clients, launch),
        seed=options.seed,
        option_delay_s=delay_s if options.option_delay is None else options.option_delay,
        shorten_s=shorten_s,
        config=options.config,
        flags=options.flags,
        reclaim=options.reclaim,
        launch=launch,
        command=tuple(command),
        variables=variables,
    )


def _ranks(clients: int | None, launch: tuple[str, ...]) -> int:
    if not launch:
        return clients or 1
    launched = ranks_of_launch(launch)
    if clients is None and launched is None:
        raise ConfigError(
            f"--launch {shlex.join(launch)}: it does not say how many ranks it starts (-n N); "
            "say so with --clients N"
        )
    if clients is not None and launched is not None and clients != launched:
        raise ConfigError(f"--clients is {clients}, and --launch starts {launched} ranks; give one")
    return clients or launched or 1


def _try(plan: Plan, call: RankCall, output: Path) -> None:
    """Check as rank 0 will, without beginning, so that what a rank would refuse is refused now;
    behind a launcher only what no host changes. Raises UsageError."""
    config = call.invocation.config()
    if not plan.launch:
        rank = MpiRank(rank=0, ranks=plan.ranks, on_machine=plan.ranks, source="PMI_RANK")
        prepare(rank_config(config, rank, output), start=rank_start(call, rank, output))


# --- places ----------------------------------------------------------------------------------


def _same_filesystem(cache: str, results: Path) -> bool:
    return "://" not in cache and same_filesystem(Path(cache), results)


def _environment(cache: str, results: Path, same_filesystem: bool) -> Json:
    return {
        "hostname": os.uname().nodename,
        "cache": {"path": cache} if "://" in cache else _described(Path(cache)),
        "results": _described(results),
        "same_filesystem": same_filesystem,
    }


def _described(path: Path) -> Json:
    return {"path": str(path), **filesystem(Reader(), path)}
