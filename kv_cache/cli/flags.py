"""The flags of `run`: the MLPerf reference's, by their exact names, and ours.

Most flags are generated from the options of the configuration that name one, so that a new option
needs one place. The tables below hold the rest: flags that choose a value of another option, or
that ask for an absent feature (refused, with what to do instead).
Nothing is printed but `--help`; bad input is a `ConfigError`.
"""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from msgspec import Struct, field

from kv_cache.cli import COMMANDS as COMMAND_MODULES
from kv_cache.cli.help import ABOUT_RUN, COMMANDS, FIRST_PAGE, USAGE, VERSION
from kv_cache.config.load import Invocation
from kv_cache.config.root import options
from kv_cache.config.schema import Option, Rule, read_text
from kv_cache.core.errors import ConfigError, did_you_mean, refusals, refuse
from kv_cache.core.kinds import RunMode
from kv_cache.core.text import printable

log = logging.getLogger("kv_cache")

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
A flag overrides --set KEY=VALUE, which overrides environment variables (KV_CACHE_RUN__NUM_USERS is
run.num_users), which override the configuration file. Sizes named gb are GiB (2^30 bytes), as in
the reference; numbers of bytes and times may have a unit, as 10GB or 5m.
Flags may be shortened as long as they stay unambiguous."""

_CPCS_PREFIXES = ("--cpcs-", "--spdk-", "--direct-probe-")
_CPCS_FLAGS = frozenset(
    (
        "--bootstrap-subsystem-nqn", "--trtype", "--traddr", "--trsvcid", "--subnqn", "--hostnqn",
        "--src-addr", "--src-svcid", "--passthru-lcores", "--dataset-nsid", "--slm-nsid",
    )
)  # fmt: skip
"""The computational-storage family of the reference's fork: too many to list in the help."""

_DASHES = re.compile("(--[^=]+=|-[^-]=?)--")


def parse(argv: Sequence[str]) -> Invocation:
    """Return the meaning of the arguments (without the program's name). Raises ConfigError;
    `--help` prints and raises SystemExit(0)."""
    return invocation_of(build_parser().read(argv, options()))


def invocation_of(flags: Mapping[str, Any]) -> Invocation:
    """Return what flags of `run` ask for: those of the environment lie below `--set`, and these
    below the other flags. Raises ConfigError."""
    environment = from_environment(options())
    by_key = set_values(flags.get("--set", ()), options())
    by_flag = _overrides(flags)
    overrides = {**environment.values, **by_key, **by_flag}
    return Invocation(
        config_path=flags.get("--config"),
        overrides=overrides,
        log_level=flags.get("--log-level", "INFO"),
        flags=frozenset(flags),
        dry_run="--dry-run" in flags,
        environment={
            path: name
            for path, name in environment.variables.items()
            if path not in by_key and path not in by_flag
        },
    )


def build_parser(prog: str = "kv-cache.py") -> "Parser":
    """Return the parser of `run`; each value's destination is the full name of its flag."""
    parser = Parser(
        prog=prog,
        usage=USAGE,
        description=ABOUT_RUN,
        epilog=_EPILOG,
        formatter_class=Formatter,
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    add_help(parser, FIRST_PAGE)
    parser.add_argument("--version", action=_Print, const=VERSION, help="Show the version")
    add_run_flags(parser)
    return parser


def add_help(parser: argparse.ArgumentParser, page: str | None) -> None:
    """Add `--help`, which prints `page`, and `--help-all`, which shows all options; without a page
    both do that."""
    if page is None:
        parser.add_argument("-h", "--help", "--help-all", action="help", help="Show this")
        return
    parser.add_argument("-h", "--help", action=_Print, const=page, help="Show the main options")
    parser.add_argument("--help-all", action="help", help="Show this: all options")


def add_run_flags(parser: argparse.ArgumentParser, *, hidden: bool = False) -> None:
    """Add every flag of `run` that `parser` does not have yet; `hidden` from its help."""
    taken, shown = set(parser._option_string_actions), len(parser._actions)
    groups: dict[str, argparse._ActionsContainer] = {}
    for title, text in _GROUPS.items():
        groups[title] = parser if hidden else parser.add_argument_group(title, text)
    _add_general(groups["What to run"])
    for option in options().values():
        if option.flag is not None and option.flag not in taken:
            title = _GROUP_OF.get(option.path) or _GROUP_OF[option.path.split(".")[0]]
            add_option(groups[title], option)
    _add_arrival(groups["Arrivals"])
    _add_absent(groups["Not in this version"])
    for action in parser._actions[shown:] if hidden else ():
        action.help = argparse.SUPPRESS


class Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=100)


class _Print(argparse.Action):
    """Writes `const` to stdout and exits with 0."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        sys.stdout.write(self.const)
        parser.exit()


class Once(argparse.Action):
    """A flag that names one file: two of them are refused, as the first would be dropped."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        first = getattr(namespace, self.dest, None)
        if first is not None:
            raise ConfigError(
                f"{option_string} is given twice, {first} and {values}; give one file, and as "
                "flags what is to differ from it"
            )
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Errors are raised, not printed with the usage, and all at once: a sentence each."""

    def read(self, argv: Sequence[str], keys: Mapping[str, Option]) -> dict[str, Any]:
        """Return what the words mean. Raises ConfigError with everything that is wrong with them,
        as far as words behind a flag without its value, say, can be understood. `keys`: what
        `--set` may set."""
        self._wrong: list[ConfigError] = []
        for word in takewhile(lambda word: word != "--", argv):
            if _DASHES.fullmatch(word):  # argparse drops them or not, as its version is
                self.error(f"{word}: -- is no value; give one")
        values, extras = argparse.Namespace(), list[str]()
        try:
            values, extras = self.parse_known_args(list(argv))
        except ConfigError as error:
            self._wrong.append(error)
        flags = vars(values)
        pairs = flags.get("--set", ()) if keys else ()
        refuse(
            [*self._wrong, *_unknown(extras, self), *refusals([partial(set_values, pairs, keys)])]
        )
        return flags

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except ConfigError as error:
            self._wrong.append(error)
            return ()

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """What an abbreviation may mean. A flag goes before those that only add words to it, so
        that `--mod` is `--model`, as in the reference, although there is a `--model-mix`."""
        matches: list[Any] = super()._get_option_tuples(option_string)
        first = min(matches, key=lambda each: len(each[1]), default=None)
        if first is not None and all(f"{each[1]}-".startswith(f"{first[1]}-") for each in matches):
            return [first]
        return matches

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ").replace("with argument", "with")
        command = self.prog.partition(" ")[2]
        where = f"{command}: " if command else ""
        raise ConfigError(f"{where}{text}; see {command + ' ' if command else ''}--help")


# --- adding flags --------------------------------------------------------------------------


def _add_general(group: argparse._ActionsContainer) -> None:
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
    add_set(group, "run.num_users=50")
    text = "Check everything, print what would be done, and do nothing"
    group.add_argument("--dry-run", dest="--dry-run", action="store_true", help=text)
    group.add_argument(
        "--log-level", dest="--log-level", type=_word("--log-level", LOG_LEVELS, str.upper),
        metavar=_braces(LOG_LEVELS), help="Least severe level of messages on stderr [default INFO]",
    )  # fmt: skip


def add_set(group: argparse._ActionsContainer, example: str) -> None:
    """Add `--set key=value`, for any option and as often as wanted."""
    text = f"Any option by its key, as {example}; may be repeated"
    group.add_argument("--set", dest="--set", metavar="KEY=VALUE", action="append", help=text)


def add_option(group: argparse._ActionsContainer, option: Option) -> None:
    """Add the flag of an option, or the word without a flag. A switch sets the opposite of a bool's
    default; a bool without default gets `--no-` too."""
    flag = option.flag
    assert flag is not None
    text = _help(option).replace("%", "%%")
    reads = partial(read_text, option, name=flag)
    if not flag.startswith("-"):
        number = "+" if option.rule.required else "*" if get_origin(option.kind) is tuple else "?"
        if option.rule.required and get_origin(option.kind) is not tuple:
            number = None  # type: ignore[assignment]
        group.add_argument(option.path, metavar=flag, help=text, type=reads, nargs=number)
        return
    names = [flag] if option.rule.short is None else [option.rule.short, flag]
    shape: dict[str, Any] = {"dest": flag, "help": text}
    if get_origin(option.kind) is tuple:
        repeats = get_args(option.kind)[-1] is Ellipsis
        shape |= {"metavar": _metavar(option), "type": reads}
        shape |= {"action": "extend"} if repeats else {}
    elif option.kind is not bool:
        shape |= {"metavar": _metavar(option), "type": reads}
        shape |= {"action": Once} if flag == "--config" else {}
    elif option.optional:
        shape |= {"action": argparse.BooleanOptionalAction}
    else:
        shape["help"] = f"Turn off: {text}" if option.default else text
        shape |= {"action": "store_const", "const": not option.default}
    group.add_argument(*names, **shape)


def _add_arrival(group: argparse._ActionsContainer) -> None:
    mode, process = options()["arrival.mode"].rule, options()["arrival.process"].rule
    words = (*mode.words, *process.words)
    group.add_argument(
        "--arrival", dest="--arrival", metavar=_braces(words), type=_word("--arrival", words),
        help=f"{mode.help}; fixed, poisson and gamma = open, spaced so by --request-rate [default "
        "closed; a --request-rate alone spaces evenly what closed users ask]",
    )  # fmt: skip


_ONLY: Mapping[str, tuple[str, str]] = {
    "--nvme-backend": (
        "file", "; the computational-storage flags (--cpcs-*, --spdk-*) are refused",
    ),
    "--cpcs-mode": ("off", ""),
    "--cpcs-client": ("mock", ", of a backend that is not used"),
}  # fmt: skip
"""Flags of the reference of which one value alone is possible, and what else their help says."""


def _add_absent(group: argparse._ActionsContainer) -> None:
    for flag, (word, more) in _ONLY.items():
        reads = partial(_only, flag)
        group.add_argument(flag, dest=flag, metavar="X", type=reads, help=f"only {word}{more}")


def _help(option: Option) -> str:
    """`Cards; their memory adds up [1 to 65536; default 1]`."""
    rule, default = option.rule, option.default
    notes = [rule.unit, None if rule.choices else rule.bounds]
    if default not in (None, {}, ()) and option.kind is not bool and not rule.required:
        notes.append(f"default {_shown(default)}")
    text = "; ".join(note for note in notes if note)
    return f"{rule.help} [{text}]" if text else rule.help


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(map(_shown, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _metavar(option: Option) -> str:
    if option.rule.choices is not None:
        return _braces(option.rule.words)
    return option.rule.metavar or {int: "N", float: "X"}.get(option.kind, "TEXT")


def _braces(words: Iterable[object]) -> str:
    return f"{{{','.join(map(str, words))}}}"


# --- values --------------------------------------------------------------------------------


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
    if text != _ONLY[flag][0]:
        raise _no_cpcs(f"{flag} {text}")
    return text


def _no_cpcs(flag: str) -> ConfigError:
    return ConfigError(
        f"{flag} would use computational storage over SPDK; this version does not have it: leave "
        "it out, and mount the device as a file system for --cache-dir"
    )


_OF_SIMULATORS = {
    "--cluster": "sim cluster-10k",
    "--pd": "sim unified-vs-separated",
    "--preset": "sim SCENARIO --preset",
    "--report-json": "-o FILE",
    "--report-csv": "--csv FILE",
    "--workload-trace": "--set workload.trace=FILE",
    "--workload-limit": "--set workload.requests=N",
    "--calibration-profile": "--set instances.NAME.profile=FILE",
}
"""What flags of public simulators are here, where a similar word would mislead."""


_AS_HYPHENS = ("-", "\N{EN DASH}", "\N{EM DASH}", "\N{MINUS SIGN}")
"""What word processors make of two hyphens as well."""


def _unknown(extras: Sequence[str], parser: argparse.ArgumentParser) -> Iterator[ConfigError]:
    """Yield the errors for words that `parser` does not know."""
    flags = [word.split("=")[0] for word in extras if word.startswith(_AS_HYPHENS)]
    if extras and not flags:
        command = parser.prog.partition(" ")[2]
        where, see = (f"{command}: ", f"{command} ") if command else ("", "")
        yield ConfigError(
            f"{where}{extras[0]!r} belongs to no flag; options start with --, see {see}--help"
        )
    cpcs = [flag for flag in flags if flag in _CPCS_FLAGS or flag.startswith(_CPCS_PREFIXES)]
    if cpcs:
        yield _no_cpcs(", ".join(cpcs))
    for flag in flags:
        if flag not in cpcs:
            near = did_you_mean(flag, parser._option_string_actions)
            if theirs := _OF_SIMULATORS.get(flag):
                near = f" Did you mean {theirs}?"
            how = near if near.startswith(" Did") else " See --help."
            yield ConfigError(f"{flag} is not a flag.{how}")


# --- keys and the environment ----------------------------------------------------------------

ENVIRONMENT = "KV_CACHE_"
"""What our variables begin with. Those of options have two underscores in the place of each dot;
others, as KV_CACHE_RANK, are not options."""


def variable_of(path: str, command: str = "") -> str:
    """Return the environment variable of an option: KV_CACHE_RUN__NUM_USERS is run.num_users,
    KV_CACHE_PROBE__SECONDS is --seconds of the command `probe`."""
    section = command.replace("-", "_").replace(" ", "_")
    return ENVIRONMENT + f"{section}.{path}".lstrip(".").upper().replace(".", "__")


class Environment(Struct, frozen=True):
    """What environment variables set: values by the option's path, and variables by that too."""

    values: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def from_environment(known: Mapping[str, Option], command: str = "") -> Environment:
    """Return what environment variables set. Raises ConfigError as `variables_of`."""
    variables = variables_of(known, command)
    values = {}

    def read(name: str, path: str, text: str) -> None:
        values[path] = read_text(known[path], text, name)

    refuse(refusals(partial(read, name, *pair) for name, pair in variables.items()))
    return Environment(
        values,
        {path: name for name, (path, _) in variables.items()},
    )


def variables_of(known: Mapping[str, Option], command: str = "") -> dict[str, tuple[str, str]]:
    """Return the environment variables that set options, of the configuration or of a `command`:
    of each the option's path, and the text. Raises ConfigError for a variable of the same sections
    that is not an option, and for one whose section does not exist."""
    named = {variable_of(path, command): path for path in known}
    by_name = {name: path for name, path in named.items() if "__" in name}
    heads = {_head(name) for name in by_name}
    variables = {}
    for name, text in sorted(os.environ.items()):
        if name in by_name:
            variables[name] = by_name[name], text
        elif _head(name) and (_head(name) in heads or not _is_a_section(_head(name))):
            _refuse_unknown(name, by_name)
    return variables


def _head(variable: str) -> str:
    """Return the section that a variable names; empty if it is not of our form."""
    head, dots, _ = variable.removeprefix(ENVIRONMENT).partition("__")
    return head if dots and variable.startswith(ENVIRONMENT) else ""


def _is_a_section(head: str) -> bool:
    """Whether a variable may be of the configuration, or of some command."""
    if any(_head(variable_of(path)) == head for path in options()):
        return True
    return any(f"{head}_".startswith(f"{_command_head(name)}_") for name in COMMAND_MODULES)


def _command_head(command: str) -> str:
    return _head(variable_of("x", command))


def _refuse_unknown(name: str, known: Iterable[str]) -> None:
    """Raise ConfigError for a variable, if it is not one of a command or section of the same name:
    `sim` and `precondition` are both."""
    if name in {variable_of(path) for path in options()}:
        return
    for command, module in COMMAND_MODULES.items():
        if _command_head(command) == _head(name):
            about = getattr(import_module(f"kv_cache.cli.{module}"), "COMMAND", None)
            if about is not None and name in about.variables:
                return
    raise ConfigError(
        f"the environment variable {name} is not an option's.{did_you_mean(name, known)}"
    )


def log_environment(variables: Iterable[str]) -> None:
    """Log which variables set options, so that none changes a measurement unseen. What a token is,
    no log says."""
    for name in variables:
        value = "..." if name.endswith("__TOKEN") else os.environ.get(name, "")
        log.info("from the environment: %s=%s", name, value)


def begin_logging(level: str = "INFO") -> None:
    """Log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class _PlainFormatter(logging.Formatter):
    """Writes what a terminal can show: a message may name what a stranger has named."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def set_values(words: Iterable[str], known: Mapping[str, Option]) -> dict[str, Any]:
    """Return the values of `KEY=VALUE` words by path. Raises ConfigError."""
    values: dict[str, Any] = {}

    def read(word: str) -> None:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word} has no =; write --set KEY=VALUE")
        if key not in known:
            inside = [path for path in known if path.startswith(f"{key}.")]
            how = (
                f" It is a section of {', '.join(inside)}." if inside else did_you_mean(key, known)
            )
            raise ConfigError(f"--set {key} is not a known option.{how}")
        if key in values:
            raise ConfigError(f"--set {key} is given twice; keep one of them")
        values[key] = read_text(known[key], text, f"--set {key}")

    refuse(refusals(partial(read, word) for word in words))
    return values


# --- meaning -------------------------------------------------------------------------------


def _overrides(flags: Mapping[str, Any]) -> dict[str, Any]:
    paths = {option.flag: option.path for option in options().values() if option.flag}
    overrides = {paths[flag]: joined(value) for flag, value in flags.items() if flag in paths}
    if "--prefill-only" in flags:
        overrides["run.mode"] = RunMode.PREFILL_ONLY.value
    if "--decode-only" in flags:
        overrides["run.mode"] = RunMode.DECODE_ONLY.value
    return overrides | _arrival(flags)


def joined(value: Any) -> Any:
    """Return the values of several words, or of a flag that is repeated, as one tuple."""
    if not isinstance(value, list):
        return value
    return tuple(item for each in value for item in (each if isinstance(each, tuple) else (each,)))


def _arrival(flags: Mapping[str, Any]) -> dict[str, str]:
    """Spaced arrivals (the reference fork's words) are those of users who do not wait."""
    word = flags.get("--arrival")
    if word is None:
        return {}
    if word in ("closed", "open"):
        return {"arrival.mode": word}
    return {"arrival.mode": "open", "arrival.process": word}
