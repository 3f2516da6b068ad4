"""One rank of an MLPerf Storage run, as newer launchers start it with mpirun.

Two forms are understood. In that of July 2026 the launcher names one of the three options of the
rules, whose parameters are known here; in that of v3.0 it gives the parameters itself, as flags of
`run`. Either way rank r writes `<output>/rank_<r>/kvcache_results_<date>_<time>.json`, the only
file of such a name there (launchers read any that matches), keeps its objects below
`<cache>/rank_<r>`, and has the seed plus r.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from kv_cache.app.prepare import Start
from kv_cache.config.load import Invocation
from kv_cache.config.mlperf import MLPERF_OPTIONS, SEED
from kv_cache.config.root import Config
from kv_cache.config.root import options as run_options
from kv_cache.config.schema import opt
from kv_cache.core.errors import ConfigError, PlaceError, UsageError, os_reason
from kv_cache.core.mpirank import MpiRank
from kv_cache.crew.per_rank import alone_note, config_of_rank

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = "mlperf_wrapper.py"
_RESULT = "kvcache_results_"
_BESIDE_OPTION = frozenset({"--config", "--set"})
_OVERRIDES_BESIDE_OPTION = frozenset({"output.output", "tiers.reclaim"})


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """What launchers ask of every rank, beside flags of `run`."""

    option: int | None = opt(
        None, "Workload of the rules", choices=tuple(MLPERF_OPTIONS), flag="--option"
    )
    base_output_dir: str | None = opt(
        None, "Results go to DIR/rank_<r>", flag="--base-output-dir", metavar="DIR"
    )
    rank_output_base: str | None = opt(
        None, "The same, if flags say what is run", flag="--rank-output-base", metavar="DIR"
    )
    cache_dir: str | None = opt(
        None, "Objects go below DIR/rank_<r>", flag="--cache-dir", metavar="DIR"
    )
    rank_cache_base: str | None = opt(
        None, "The same, if flags say what is run", flag="--rank-cache-base", metavar="DIR"
    )
    seed: int | None = opt(
        None, f"Seed of rank 0; if not given, {SEED}; each rank adds its own number", low=0,
        high=2**32 - 1, flag="--seed", metavar="S",
    )  # fmt: skip
    seed_base: int | None = opt(
        None, "The same; it goes before --seed", low=0, high=2**32 - 1, flag="--seed-base",
        metavar="S",
    )  # fmt: skip
    start_delay: float = opt(
        0.0, "Wait at the start, doing nothing", unit="s", low=0, high=86_400, flag="--start-delay",
        metavar="S",
    )  # fmt: skip
    end_delay: float = opt(
        0.0, "Wait at the end, doing nothing", unit="s", low=0, high=86_400, flag="--end-delay",
        metavar="S",
    )  # fmt: skip
    shorten: float | None = opt(
        None, "End the window of an --option after S seconds, to try it out; the result says that "
        "it is not a submission", unit="s", above=0, high=86_400, flag="--shorten", metavar="S",
    )  # fmt: skip
    not_submittable: str | None = opt(
        None, "Why this is not a submission, if the launcher knows; the result says so",
        flag="--not-submittable", metavar="WHY",
    )  # fmt: skip


class RankCall(Struct, frozen=True, kw_only=True):
    """What a launcher asks of all ranks: what they run, and where their results go."""

    output: Path
    invocation: Invocation
    option: int | None
    shorten_s: float | None
    not_submittable: str | None
    start_delay_s: float
    end_delay_s: float


# --- what is asked ---------------------------------------------------------------------------


def rank_call(options: RankOptions, invocation: Invocation) -> RankCall:
    """Return the meaning of a launcher's call, whose flags of `run` are the invocation. Raises
    ConfigError."""
    by_option = options.option is not None or options.base_output_dir is not None
    if by_option and (options.rank_output_base is not None or options.rank_cache_base is not None):
        raise ConfigError(
            "--option and --base-output-dir belong to one way of being called, --rank-output-base "
            "and --rank-cache-base to another; give those of one"
        )
    if by_option:
        _require(options, "option", "base_output_dir", "cache_dir")
        _refuse_flags(invocation)
        output, cache = options.base_output_dir, options.cache_dir
    else:
        _require(options, "rank_output_base", "rank_cache_base")
        if options.shorten is not None:
            raise ConfigError("--shorten shortens an --option; give the flags a --duration instead")
        output, cache = options.rank_output_base, options.rank_cache_base
    assert output is not None
    assert cache is not None
    return RankCall(
        output=Path(output),
        invocation=_with_fixed(options, cache, invocation),
        option=options.option,
        shorten_s=options.shorten,
        not_submittable=options.not_submittable,
        start_delay_s=options.start_delay,
        end_delay_s=options.end_delay,
    )


def _require(options: RankOptions, *names: str) -> None:
    flags = {name: f"--{name.replace('_', '-')}" for name in names}
    for name in names:
        if getattr(options, name) is None:
            others = ", ".join(flag for other, flag in flags.items() if other != name)
            raise ConfigError(
                f"{flags[name]} is missing; it is needed with {others}, see {PROGRAM} --help"
            )


def _refuse_flags(invocation: Invocation) -> None:
    """Refuse what changes the workload of an option, however it is set."""
    allowed = {run_options()[path].flag for path in _OVERRIDES_BESIDE_OPTION} | _BESIDE_OPTION
    flags = sorted(invocation.flags - allowed)
    others = sorted(invocation.overrides.keys() - _OVERRIDES_BESIDE_OPTION)
    for name in [*flags, *(f"{path} (by --set or in the environment)" for path in others)]:
        raise ConfigError(
            f"{name} cannot be given beside --option, which sets what is run; leave it out, or "
            "give all parameters as flags with --rank-output-base and --rank-cache-base"
        )


def _with_fixed(options: RankOptions, cache: str, invocation: Invocation) -> Invocation:
    """Return the flags of `run`, and over them what the launcher asks of the wrapper."""
    fixed: dict[str, Any] = {}
    if options.option is not None:
        fixed |= MLPERF_OPTIONS[options.option].overrides()
    if options.shorten is not None:
        fixed["run.duration_s"] = options.shorten
    seeds = (options.seed_base, options.seed, SEED)
    fixed["run.seed"] = next(seed for seed in seeds if seed is not None)
    fixed["tiers.cache_dir"] = (cache,)
    path = invocation.config_path
    return replace(
        invocation,
        config_path=None if path is None or _is_absent_default(path) else path,
        overrides={**invocation.overrides, **fixed},
        environment={k: v for k, v in invocation.environment.items() if k not in fixed},
    )


def _is_absent_default(path: Path) -> bool:
    """Whether it is the `config.yaml` beside the reference's wrapper, which launchers of v3.0 name
    unasked. There is none here: its values are the program's defaults."""
    default = CHECKOUT / "config.yaml"
    return os.path.realpath(path) == os.path.realpath(default) and not default.exists()


# --- one rank of them ------------------------------------------------------------------------


@contextlib.contextmanager
def rank_directory(call: RankCall, rank: MpiRank) -> Iterator[Path]:
    """Make the directory of a rank's result; remove it again if its input is refused. Raises
    PlaceError."""
    directory = call.output / rank.directory
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceError(
            f"output directory {directory}: it cannot be made ({os_reason(error)}); name another"
        ) from error
    try:
        yield directory
    except UsageError:
        if is_new:
            with contextlib.suppress(OSError):  # something is in it, or another process was faster
                directory.rmdir()
        raise


def rank_config(config: Config, rank: MpiRank, directory: Path) -> Config:
    """Return the configuration of one rank, whose result goes into `directory`. Raises
    ConfigError."""
    for name, value, why in (
        ("trials", config.run.trials, "repeats trials itself, and reads one result of each rank"),
        ("clients", config.run.clients, "starts the clients itself, with mpirun"),
    ):
        if value != 1:
            raise ConfigError(f"run.{name} (--{name}) is {value}: the launcher {why}; leave it out")
    return config_of_rank(config, rank, directory / f"{_RESULT}{datetime.now():%Y%m%d_%H%M%S}.json")


def rank_start(call: RankCall, rank: MpiRank, directory: Path) -> Start:
    """Return who is started, with what its result has to say."""
    return Start(
        rank=rank,
        notes=(*alone_note(rank), *_earlier(directory)),
        not_submittable=tuple(_not_submittable(call)),
    )


def _earlier(directory: Path) -> tuple[str, ...]:
    others = sorted(path.name for path in directory.glob(f"{_RESULT}*.json"))
    if not others:
        return ()
    note = f"{directory} already has {others[0]}: a launcher reads one of the results there"
    return (f"{note}, and it is not defined which",)


def _not_submittable(call: RankCall) -> Iterator[str]:
    if call.shorten_s is not None and call.option is not None:
        rule_s = MLPERF_OPTIONS[call.option].duration_s
        why = f"not to be submitted: --shorten ends the window after {call.shorten_s:g} s"
        yield f"{why}, where option {call.option} has {rule_s:g} s"
    if call.not_submittable is not None:
        yield f"not to be submitted: {call.not_submittable}"
