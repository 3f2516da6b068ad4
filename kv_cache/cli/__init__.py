"""The command line: one file a command."""

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from signal import SIGINT

from kv_cache.core.errors import (
    BrokenLawError,
    NoAnswerError,
    UsageError,
    did_you_mean,
)
from kv_cache.core.exits import Exit
from kv_cache.installing import NEEDED, missing_hint, stranger_hint

COMMANDS: Mapping[str, str] = {
    "run": "run",
    "capacity": "capacity",
    "compare": "compare",
    "sweep": "sweep",
    "precondition": "precondition",
    "mlperf": "mlperf",
    "report": "report",
    "plot": "plot",
    "trace": "trace",
    "lab": "lab",
    "sim": "sim",
    "compile": "compiled",
    "datasets": "datasets",
    "verify": "verify",
    "twin": "twin",
    "probe": "probe",
    "calibrate": "calibrate",
    "predict": "predict",
    "config": "config",
    "completion": "completion",
    "serve": "serve",
}
"""Each command with its module; without a command's name, `run` is meant."""


def command_of(name: str) -> Callable[[Sequence[str]], int]:
    """Import a command, which takes its arguments and returns the exit code."""
    gc.disable()  # it would go through all that is imported, and find nothing: 80 ms of 600
    try:
        module = import_module(f"kv_cache.cli.{COMMANDS[name]}")
    finally:
        gc.enable()
    main: Callable[[Sequence[str]], int] = module.main
    return main


ON_DEVICES = frozenset({"run", "capacity", "precondition", "probe", "calibrate", "twin"})
UNTIL_THE_END = frozenset(
    {"compare", "report", "plot", "trace", "datasets", "verify", "config", "completion", "serve"}
)
"""Those that write no result of what there is when a signal comes: it ends them at once."""
_NOT_ON_DEVICES = frozenset({"-h", "--help", "--help-all", "--version", "--virtual-time"})


def main(argv: Sequence[str]) -> int:
    """The exit code: 0 finished, 1 broken, 2 bad input, 130 and 143 interrupted."""
    try:
        if argv and not argv[0].startswith("-"):
            return _called(argv[0], argv[1:])
        return command_of("run")(argv)
    except (UsageError, BrokenLawError, NoAnswerError) as error:
        print_error(error)
        return error.exit


def print_error(error: Exception, program: str = "kv-cache") -> None:
    """Print the sentence of an error, which may name what a stranger has named."""
    from kv_cache.core.text import printable

    for line in f"{program}: {error}".split("\n"):
        print(printable(line), file=sys.stderr)


def _called(name: str, argv: Sequence[str]) -> int:
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name!r}.{did_you_mean(name, COMMANDS)}")
    if name in ("lab", "sim"):
        from kv_cache.app.compiled import use

        use(argv)
    return command_of(name)(argv)


def _refuse_other_than_utf8(argv: Sequence[str]) -> int:
    """A path of other bytes would work as a path, and could not be written into a result."""
    from kv_cache.core.text import in_utf8, is_utf8

    for word in argv:
        if not is_utf8(word):
            print(
                f"kv-cache: the argument '{in_utf8(word)}' is not UTF-8, which results are "
                "written in; rename what it names, or reach it by a link",
                file=sys.stderr,
            )
            return Exit.REFUSED
    return 0


def _under_a_supervisor(argv: Sequence[str], *, wrapper: bool) -> None:
    """Returns in the process that does the work: this one, or a child where it touches devices or
    is a rank of a launcher's."""
    from kv_cache.cli.supervisor import supervise
    from kv_cache.core.launched import COORDINATOR, rank_of

    try:
        launched = COORDINATOR not in os.environ and rank_of(os.environ).source is not None
    except UsageError:  # the command says it
        launched = False
    command = argv[0] if argv and not argv[0].startswith("-") else "run"
    if wrapper or (command in ON_DEVICES and _NOT_ON_DEVICES.isdisjoint(argv)):
        supervise(own_session=launched)
    elif launched and (command == "run" or (command == "sweep" and "mpi4py" not in sys.modules)):
        supervise(own_session=True)


def rank_of_launcher(argv: Sequence[str]) -> int:
    """Run one rank as MLPerf's launcher starts it; the exit code. Imports its module only then:
    what can be told without a package that is missing is told, and little is forked."""
    from kv_cache.cli.wrapper import main as rank

    return rank(argv)


def console(entry: Callable[[Sequence[str]], int] = main) -> None:
    """The console scripts."""
    from kv_cache.bench.ending_signals import EXITS
    from kv_cache.cli.early_signal import end_on, exit_of
    from kv_cache.cli.streams import lost_output, open_standard_files

    end_on(*(EXITS if UNTIL_THE_END.intersection(sys.argv[1:2]) else [SIGINT]))
    open_standard_files()
    if (stranger := stranger_hint()) is not None:
        print(f"kv-cache: {stranger}", file=sys.stderr)
        sys.exit(Exit.REFUSED)
    from kv_cache.cli.help import first_words

    if entry is main and (words := first_words(sys.argv[1:])):
        sys.stdout.write(words)
        sys.exit(Exit.DONE)
    from kv_cache.bench.address_space import too_little_to_begin
    from kv_cache.bench.process_limits import shortage

    if (limit := too_little_to_begin()) is not None:
        print(f"kv-cache: {limit}", file=sys.stderr)
        sys.exit(Exit.REFUSED)
    try:
        if refused := _refuse_other_than_utf8(sys.argv[1:]):
            sys.exit(refused)
        _under_a_supervisor(sys.argv[1:], wrapper=entry is not main)
        code = entry(sys.argv[1:])
        sys.stdout.flush()
    except (MemoryError, SystemError, OSError, RuntimeError, ImportError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        hint = missing_hint(missing) if missing in NEEDED else shortage(error)
        code = Exit.REFUSED
        if hint is None:
            hint, code = lost_output(), Exit.EARLY
        if hint is None:
            raise
        print(f"kv-cache: {hint}", file=sys.stderr)
    except KeyboardInterrupt as ended:  # no signal was taken over, and a second one may come here
        os._exit(exit_of(ended))
    if code == Exit.NO_ANSWER:  # there is a thread that does not end
        from kv_cache.cli.supervisor import tell

        sys.stderr.flush()
        tell(code=int(code))
        os._exit(code)
    sys.exit(code)
