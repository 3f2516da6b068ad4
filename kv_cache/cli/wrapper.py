"""`mlperf_wrapper.py`: what newer MLPerf Storage launchers start with mpirun, once for each rank.

Two forms are understood. In that of July 2026 the launcher names one of the three options of the
rules, whose parameters are known here; in that of v3.0 it gives the parameters itself, as flags of
`run`. Either way rank r writes `<output>/rank_<r>/kvcache_results_<date>_<time>.json`, the only
file of such a name there (launchers read any that matches), keeps its objects below
`<cache>/rank_<r>`, and has the seed plus r.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kv_cache.cli import at_home
from kv_cache.core.errors import ConfigError, NoAnswerError, PlaceError, UsageError
from kv_cache.core.exits import Exit
from kv_cache.core.mpirank import MpiRank
from kv_cache.crew.launched import rank_of

if TYPE_CHECKING:
    from kv_cache.app.prepare import Start
    from kv_cache.config.load import Invocation
    from kv_cache.config.root import Config

PROG = "mlperf_wrapper.py"
CHECKOUT = Path(__file__).resolve().parents[2]
RESULT = "kvcache_results_"

_USAGE = """\
%(prog)s --option {1,2,3} --base-output-dir D --cache-dir C [--seed S] [--config F]
       %(prog)s --rank-output-base D --rank-cache-base C [--seed-base S] [flag of run ...]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a launcher asked of all ranks."""

    output: Path
    cache: str
    reclaim: str | None
    seed: int
    config: str | None
    flags: tuple[str, ...]  # of kv-cache.py
    option: int | None
    shorten_s: float | None
    not_submittable: str | None
    start_delay_s: float
    end_delay_s: float


def main(argv: Sequence[str]) -> int:
    """One rank's run; the exit code is that of `run`."""
    try:
        return _delayed(read([at_home(word) for word in argv]), rank_of(os.environ))
    except UsageError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return Exit.REFUSED
    except NoAnswerError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return Exit.NO_ANSWER


# --- what is asked ---------------------------------------------------------------------------


def read(argv: Sequence[str]) -> Asked:
    """The meaning of the arguments. Raises ConfigError; `--help` prints and raises SystemExit."""
    given, flags = _parser().parse_known_args(list(argv))
    by_option = given.option is not None or given.base_output_dir is not None
    if by_option and (given.rank_output_base is not None or given.rank_cache_base is not None):
        raise ConfigError(
            "--option and --base-output-dir belong to one way of being called, --rank-output-base "
            "and --rank-cache-base to another; give those of one"
        )
    return _by_option(given, flags) if by_option else _by_flags(given, flags)


def _by_option(given: argparse.Namespace, flags: Sequence[str]) -> Asked:
    _need(given, "--option", "--base-output-dir", "--cache-dir")
    if flags:
        raise ConfigError(
            f"{flags[0]} cannot be given beside --option, which sets what is run; leave it out, or "
            "give all parameters as flags with --rank-output-base and --rank-cache-base"
        )
    return _asked(given, (), given.base_output_dir, given.cache_dir)


def _by_flags(given: argparse.Namespace, flags: Sequence[str]) -> Asked:
    _need(given, "--rank-output-base", "--rank-cache-base")
    if given.shorten is not None:
        raise ConfigError("--shorten shortens an --option; give the flags a --duration instead")
    return _asked(given, flags, given.rank_output_base, given.rank_cache_base)


def _need(given: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(given, name[2:].replace("-", "_")) is None:
            others = ", ".join(other for other in names if other != name)
            raise ConfigError(f"{name} is missing; it is needed with {others}, see {PROG} --help")


def _asked(given: argparse.Namespace, flags: Sequence[str], output: str, cache: str) -> Asked:
    from kv_cache.config.mlperf import SEED

    seeds = (given.seed_base, given.seed, SEED)
    return Asked(
        output=Path(output),
        cache=cache,
        reclaim=given.reclaim,
        seed=next(seed for seed in seeds if seed is not None),
        config=given.config,
        flags=tuple(flags),
        option=given.option,
        shorten_s=given.shorten,
        not_submittable=given.not_submittable,
        start_delay_s=given.start_delay,
        end_delay_s=given.end_delay,
    )


def _parser() -> argparse.ArgumentParser:
    """Without abbreviations: what is not known here is a flag of kv-cache.py."""
    from kv_cache.cli.parsing import RECLAIM, CommandParser, Once

    parser = CommandParser(prog=PROG, usage=_USAGE, allow_abbrev=False, description=_ABOUT)
    add = parser.add_argument
    add("--option", type=int, choices=(1, 2, 3), help="Workload of the rules")
    add("--base-output-dir", metavar="D", help="Results go to D/rank_<r>")
    add("--rank-output-base", metavar="D", help="The same, where flags say what is run")
    add("--cache-dir", metavar="C", help="Objects go below C/rank_<r>")
    add("--rank-cache-base", metavar="C", help="The same, where flags say what is run")
    add("--reclaim", metavar="HOST", help=RECLAIM)
    add("--seed", type=int, metavar="S", help="Seed of rank 0 [42]; each rank adds its own number")
    add("--seed-base", type=int, metavar="S", help="The same; it goes before --seed")
    add("--config", metavar="F", action=Once, help="YAML configuration below the parameters")
    for when in ("start", "end"):
        text = f"Wait so long at the {when}, doing nothing [s; default 0]"
        add(f"--{when}-delay", type=seconds, default=0.0, metavar="S", help=text)
    text = "End the window after S seconds, to try it out; the result says that it is no submission"
    add("--shorten", type=seconds, metavar="S", help=text)
    text = "Why this is no submission, where whoever starts the ranks knows; the result says so"
    add("--not-submittable", metavar="WHY", help=text)
    add("--output", help=argparse.SUPPRESS)  # given or not, the launcher's place is the place
    return parser


_ABOUT = "One rank of an MLPerf Storage KV-cache run, as the MLPerf launcher starts it."


def seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86_400:
        raise ValueError
    return value


# --- running ---------------------------------------------------------------------------------


def _delayed(asked: Asked, rank: MpiRank) -> int:
    """With the delays around it, in which a signal ends everything at once."""
    from kv_cache.bench.interrupts import interrupts

    with interrupts() as caught:
        caught.stop.wait(asked.start_delay_s)
        if caught.came:
            return caught.exit_code
        code = _run(asked, rank)
        if not code:
            caught.stop.wait(asked.end_delay_s)
    return code or caught.exit_code


def _run(asked: Asked, rank: MpiRank) -> int:
    from kv_cache.cli.run import loaded, measure

    directory = asked.output / rank.directory
    created = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceError(
            f"output directory {directory}: it cannot be made ({error.strerror}); name another"
        ) from error
    try:
        config, notes = loaded(invocation(asked))
        own = own_config(config, rank, result_of(directory))
        return measure(own, start_of(asked, rank, directory), notes)
    except UsageError:
        if created:
            with contextlib.suppress(OSError):  # there is something in it, or somebody was faster
                directory.rmdir()
        raise


def invocation(asked: Asked) -> "Invocation":
    """The flags as `run` takes them, and over them what the launcher asked of the wrapper."""
    from kv_cache.cli.flags import parse
    from kv_cache.config.mlperf import MLPERF_OPTIONS

    config = [] if asked.config is None or _is_absent_default(asked) else [asked.config]
    called = parse([*asked.flags, *(f"--config={path}" for path in config)])
    if asked.option is not None and called.environment:
        raise ConfigError(
            f"the environment variable {next(iter(called.environment.values()))} cannot be set "
            "beside --option, which sets what is run; unset it"
        )
    fixed = {} if asked.option is None else MLPERF_OPTIONS[asked.option].overrides()
    if asked.shorten_s is not None:
        fixed["run.duration_s"] = asked.shorten_s
    own: dict[str, Any] = {"run.seed": asked.seed, "tiers.cache_dir": (asked.cache,)}
    if asked.reclaim is not None:
        own["tiers.reclaim"] = asked.reclaim
    variables = {path: name for path, name in called.environment.items() if path not in own}
    overrides = {**called.overrides, **fixed, **own}
    return replace(called, overrides=overrides, environment=variables)


def _is_absent_default(asked: Asked) -> bool:
    """Launchers of v3.0 name, without being asked to, the `config.yaml` that stands beside the
    reference's wrapper. Here stands none, and its values are the program's defaults."""
    path = CHECKOUT / "config.yaml"
    named = asked.config is not None and os.path.realpath(asked.config) == os.path.realpath(path)
    return named and not path.exists()


def result_of(directory: Path) -> Path:
    """The result of a rank that begins now."""
    return directory / f"{RESULT}{datetime.now():%Y%m%d_%H%M%S}.json"


def own_config(config: "Config", rank: MpiRank, output: Path) -> "Config":
    """The configuration of one rank, whose result goes to `output`. Raises ConfigError."""
    from kv_cache.crew.per_rank import apart

    for name, value, why in (
        ("trials", config.run.trials, "repeats trials itself, and reads one result of each rank"),
        ("clients", config.run.clients, "starts the clients itself, with mpirun"),
    ):
        if value != 1:
            raise ConfigError(f"run.{name} (--{name}) is {value}: the launcher {why}; leave it out")
    return apart(config, rank, output)


def start_of(asked: Asked, rank: MpiRank, directory: Path) -> "Start":
    """Who is started; its result goes into that directory."""
    from kv_cache.app.prepare import Start
    from kv_cache.crew.per_rank import alone_note

    return Start(
        rank=rank,
        notes=(*alone_note(rank), *_earlier(directory)),
        not_submittable=_not_submittable(asked),
    )


def _earlier(directory: Path) -> tuple[str, ...]:
    others = sorted(path.name for path in directory.glob(f"{RESULT}*.json"))
    if not others:
        return ()
    said = f"{directory} already has {others[0]}: a launcher reads one of the results there"
    return (f"{said}, and nobody knows which",)


def _not_submittable(asked: Asked) -> tuple[str, ...]:
    from kv_cache.config.mlperf import MLPERF_OPTIONS

    told = () if asked.not_submittable is None else (
        f"not to be submitted: {asked.not_submittable}",
    )  # fmt: skip
    if asked.shorten_s is None or asked.option is None:
        return told
    rule_s = MLPERF_OPTIONS[asked.option].duration_s
    said = f"not to be submitted: --shorten ends the window after {asked.shorten_s:g} s"
    return (f"{said}, where option {asked.option} has {rule_s:g} s", *told)
