"""The flags of `run`: the MLPerf reference's, by their exact names, and ours.

Most flags are generated from the options of the configuration that name one, so that a new option
needs one place. The tables below hold the rest: flags that choose a value of another option, or
that ask for an absent feature (refused, with what to do instead).
Nothing is printed but `--help`; bad input is a `ConfigError`.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_origin

from kv_cache.cli.help import COMMANDS, FIRST_PAGE, USAGE, VERSION
from kv_cache.cli.parsing import Once
from kv_cache.config.load import Invocation
from kv_cache.config.root import options
from kv_cache.config.schema import Option, Rule, read_text
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.kinds import RunMode

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_GROUPS: Mapping[str, str] = {
    "What to run": "the model, the stages of a request, and what the verdict judges",
    "The tiers": "the places for copies, the fastest first: GPU, CPU, storage",
    "The I/O": "how bytes reach storage, and whether they are trusted",
    "Semantics": "what a request does: like the reference (mlperf) or like an engine (serving)",
    "Who asks": "synthetic users, or the requests of a trace",
    "Arrivals": "when requests come, and whether users wait for their answers",
    "Preconditioning": "what is done to the device before anything is measured",
    "Finding the limit": "users come and go during the run; see also the command capacity",
    "Limits": "how long the run is and how much may happen at once",
    "Several ranks": "that run together, on one machine or on many (mpirun)",
    "Output": "the result and what is written beside it",
    "Not in this version": "flags of the reference that are recognised and refused, with a reason",
}

_GROUP_OF: Mapping[str, str] = {
    "run": "What to run",
    "tiers": "The tiers",
    "policies": "The tiers",
    "io": "The I/O",
    "s3": "The I/O",
    "semantics": "Semantics",
    "workload": "Who asks",
    "rag": "Who asks",
    "run.num_users": "Who asks",
    "arrival": "Arrivals",
    "schedule": "Limits",
    "run.duration_s": "Limits",
    "run.warmup_s": "Limits",
    "run.drain_s": "Limits",
    "run.max_requests": "Limits",
    "output": "Output",
    "monitor": "Output",
    "precondition": "Preconditioning",
    "autoscaler": "Finding the limit",
    "run.trials": "Limits",
    "run.trial_cooldown_s": "Limits",
    "run.clients": "Several ranks",
    "run.mpi": "Several ranks",
    "run.clients_timeout_s": "Several ranks",
    "run.clients_port": "Several ranks",
    "sim.profile": "What to run",
    "sim.extrapolate": "What to run",
    "sim.predict": "What to run",
}
"""By the option's path, else by its section."""

_EPILOG = f"""{COMMANDS}

examples:
  %(prog)s --config quick --cache-dir /mnt/nvme/kv
  %(prog)s --gpu-mem-gb 0 --cpu-mem-gb 0 --generation-mode none --duration 300 \\
      --num-users 200 --max-concurrent-allocs 16 --cache-dir /mnt/nvme/kv --seed 42
  %(prog)s --semantics serving --trace datasets/<name> --cache-dir /mnt/nvme/kv
A flag overrides the configuration file. Sizes named gb are GiB (2^30 bytes), as in the reference.
Flags may be shortened as long as they stay unambiguous."""

_CPCS_PREFIXES = ("--cpcs-", "--spdk-", "--direct-probe-")
_CPCS_FLAGS = frozenset(
    (
        "--bootstrap-subsystem-nqn", "--trtype", "--traddr", "--trsvcid", "--subnqn", "--hostnqn",
        "--src-addr", "--src-svcid", "--passthru-lcores", "--dataset-nsid", "--slm-nsid",
    )
)  # fmt: skip
"""The computational-storage family of the reference's fork: too many to list in the help."""


def parse(argv: Sequence[str]) -> Invocation:
    """The meaning of the arguments (without the program's name). Raises ConfigError; `--help`
    prints and raises SystemExit(0)."""
    values, extras = build_parser().parse_known_args(list(argv))
    if extras:
        raise _unknown(extras)
    given = vars(values)
    return Invocation(
        config_path=given.get("--config"),
        overrides=_overrides(given),
        log_level=given.get("--log-level", "INFO"),
        given=frozenset(given),
    )


def own_and_rest(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """For a command with options of its own beside those of `run`: its own, and what `run` is to
    understand. A flag that neither knows is told with the nearest of both. Raises ConfigError."""
    options, rest = parser.parse_known_args(list(argv))
    known = tuple(build_parser()._option_string_actions)
    for word in rest:
        flag = word.split("=")[0]
        if not flag.startswith("--") or any(each.startswith(flag) for each in known):
            continue
        if flag not in _CPCS_FLAGS and not flag.startswith(_CPCS_PREFIXES):
            raise _no_flag(flag, (*parser._option_string_actions, *known))
    return options, rest


def build_parser(prog: str = "kv-cache.py") -> argparse.ArgumentParser:
    """The parser of `run`; each value's destination is the full name of its flag."""
    parser = _Parser(
        prog=prog,
        usage=USAGE,
        description="Measure how fast storage is for the KV caches of LLM serving.",
        epilog=_EPILOG,
        formatter_class=_Formatter,
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    parser.add_argument(
        "-h", "--help", action=_Print, const=FIRST_PAGE, help="Show the commands and main options"
    )
    parser.add_argument("--help-all", action="help", help="Show this: all options")
    parser.add_argument("--version", action=_Print, const=VERSION, help="Show the version")
    groups = {title: parser.add_argument_group(title, text) for title, text in _GROUPS.items()}
    _add_general(groups["What to run"])
    for option in options().values():
        if option.flag is not None:
            _add_option(groups[_group_of(option.path)], option, option.flag)
    _add_arrival(groups["Arrivals"])
    _add_absent(groups["Not in this version"])
    return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=100)


class _Print(argparse.Action):
    """Writes `const` to stdout and exits with 0."""

    def __init__(self, **given: Any) -> None:
        super().__init__(nargs=0, **given)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        sys.stdout.write(self.const)
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Errors are raised as one sentence, not printed with the usage."""

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """What an abbreviation may mean. A flag goes before those that only add words to it, so
        that `--mod` is `--model`, as in the reference, although there is a `--model-mix`."""
        found: list[Any] = super()._get_option_tuples(option_string)
        first = min(found, key=lambda each: len(each[1]), default=None)
        if first is not None and all(f"{each[1]}-".startswith(f"{first[1]}-") for each in found):
            return [first]
        return found

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ").replace("with argument", "with")
        raise ConfigError(f"{text}; see --help")


# --- adding flags --------------------------------------------------------------------------


def _add_general(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--config", dest="--config", metavar="FILE", type=_path, action=Once,
        help="YAML configuration: a file, or the name of a shipped one such as quick; flags "
        "override it",
    )  # fmt: skip
    modes = group.add_mutually_exclusive_group()
    for flag, text in (
        ("--prefill-only", "Run only the stages before generation: reads of history and writes"),
        ("--decode-only", "Run only generation, reading a cache that is populated first"),
    ):
        modes.add_argument(flag, dest=flag, action="store_true", help=text)
    group.add_argument(
        "--log-level", dest="--log-level", type=_word("--log-level", LOG_LEVELS, str.upper),
        metavar=_braces(LOG_LEVELS), help="Least severe level of messages on stderr [default INFO]",
    )  # fmt: skip


def _add_option(group: argparse._ArgumentGroup, option: Option, flag: str) -> None:
    """A switch sets the opposite of a bool's default; a bool without default gets --no- too."""
    text = _help(option).replace("%", "%%")
    if get_origin(option.kind) is tuple:
        group.add_argument(
            flag, dest=flag, metavar=_metavar(option), help=text, action="extend",
            type=partial(_read, option, flag),
        )  # fmt: skip
    elif option.kind is not bool:
        group.add_argument(
            flag, dest=flag, metavar=_metavar(option), help=text,
            type=partial(_read, option, flag),
        )  # fmt: skip
    elif option.optional:
        group.add_argument(flag, dest=flag, action=argparse.BooleanOptionalAction, help=text)
    else:
        text = f"Turn off: {text}" if option.default else text
        group.add_argument(
            flag, dest=flag, action="store_const", const=not option.default, help=text
        )


def _add_arrival(group: argparse._ArgumentGroup) -> None:
    mode, process = options()["arrival.mode"].rule, options()["arrival.process"].rule
    assert mode.choices is not None
    assert process.choices is not None
    words = (*mode.choices, *process.choices)
    group.add_argument(
        "--arrival", dest="--arrival", metavar=_braces(words),
        type=_word("--arrival", words),
        help=f"{mode.help}; fixed, poisson and gamma = open, spaced so by --request-rate "
        "[default closed; a --request-rate alone spaces evenly what closed users ask]",
    )  # fmt: skip


def _add_absent(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--nvme-backend", dest="--nvme-backend", metavar="X", type=partial(_only, "--nvme-backend"),
        help="only file; the computational-storage flags (--cpcs-*, --spdk-*) are refused",
    )  # fmt: skip
    group.add_argument(
        "--cpcs-mode", dest="--cpcs-mode", metavar="X", type=partial(_only, "--cpcs-mode"),
        help="only off",
    )  # fmt: skip


def _group_of(path: str) -> str:
    return _GROUP_OF.get(path) or _GROUP_OF[path.split(".")[0]]


def _help(option: Option) -> str:
    """`Cards; their memory adds up [1 to 65536; default 1]`."""
    notes = [option.unit, None if option.rule.choices else option.bounds]
    if option.default not in (None, {}) and option.kind is not bool:
        notes.append(f"default {option.default}")
    text = "; ".join(note for note in notes if note)
    return f"{option.help} [{text}]" if text else option.help


def _metavar(option: Option) -> str:
    if option.rule.choices is not None:
        return _braces(option.rule.choices)
    return option.rule.metavar or {int: "N", float: "X"}.get(option.kind, "TEXT")


def _braces(words: Sequence[str]) -> str:
    return f"{{{','.join(words)}}}"


# --- values --------------------------------------------------------------------------------


def _read(option: Option, flag: str, text: str) -> Any:
    return read_text(option, text, flag)


def _path(text: str) -> Path:
    if not text:
        raise ConfigError("--config is empty; give the path of a YAML file")
    return Path(text)


def _word(
    flag: str, words: tuple[str, ...], change: Callable[[str], str] = str
) -> Callable[[str], str]:
    option = Option(path=flag, hint=str, default=None, rule=Rule(help="", choices=words))

    def read(text: str) -> str:
        value: str = read_text(option, change(text), flag)
        return value

    return read


def _only(flag: str, text: str) -> str:
    if text != {"--nvme-backend": "file", "--cpcs-mode": "off"}[flag]:
        raise _no_cpcs(f"{flag} {text}")
    return text


def _no_cpcs(flag: str) -> ConfigError:
    return ConfigError(
        f"{flag} would use computational storage over SPDK; this version does not have it: leave "
        "it out, and mount the device as a file system for --cache-dir"
    )


def _unknown(extras: Sequence[str]) -> ConfigError:
    flag = next((word.split("=")[0] for word in extras if word.startswith("-")), None)
    if flag is None:
        return ConfigError(f"{extras[0]!r} belongs to no flag; options start with --, see --help")
    if flag in _CPCS_FLAGS or flag.startswith(_CPCS_PREFIXES):
        return _no_cpcs(flag)
    return _no_flag(flag, build_parser()._option_string_actions)


def _no_flag(flag: str, known: Iterable[str]) -> ConfigError:
    near = did_you_mean(flag, known)
    return ConfigError(
        f"{flag} is not a flag.{near if near.startswith(' Did') else ' See --help.'}"
    )


# --- meaning -------------------------------------------------------------------------------


def _overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    paths = {option.flag: option.path for option in options().values() if option.flag}
    overrides = {paths[flag]: _frozen(value) for flag, value in given.items() if flag in paths}
    if "--prefill-only" in given:
        overrides["run.mode"] = RunMode.PREFILL_ONLY.value
    if "--decode-only" in given:
        overrides["run.mode"] = RunMode.DECODE_ONLY.value
    return overrides | _arrival(given)


def _frozen(value: Any) -> Any:
    """Values of a flag that was given several times are collected in a list."""
    return tuple(value) if isinstance(value, list) else value


def _arrival(given: Mapping[str, Any]) -> dict[str, str]:
    """Spaced arrivals (the reference fork's words) are those of users who do not wait."""
    word = given.get("--arrival")
    if word is None:
        return {}
    if word in ("closed", "open"):
        return {"arrival.mode": word}
    return {"arrival.mode": "open", "arrival.process": word}
