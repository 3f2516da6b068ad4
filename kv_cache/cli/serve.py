"""`kv-cache.py serve`: a page to configure, check, run, watch and compare, and an API."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kv_cache.cli import COMMANDS, ON_DEVICES
from kv_cache.cli.command import Command, OfRun
from kv_cache.cli.flags import begin_logging
from kv_cache.cli.help import ABOUT_RUN
from kv_cache.config.root import Config
from kv_cache.core.errors import UsageError
from kv_cache.core.exits import Exit
from kv_cache.installing import install_hint
from kv_cache.web.serve_options import ServeOptions

if TYPE_CHECKING:
    from kv_cache.web.commands import WebCommand

COMMAND = Command(
    name="serve",
    options=ServeOptions,
    about="""\
    Serve a page on this machine to configure, check, start, watch and compare runs, and an API that
    does the same. What is started is a process with the arguments that the page shows; it goes on
    when the page is closed, and when this server ends.
    """,
    epilog="""\
    examples:
      kv-cache.py serve
      kv-cache.py serve --results results --folder /mnt/a --folder /mnt/b
      export KV_CACHE_SERVE__TOKEN=$(openssl rand -hex 16); echo $KV_CACHE_SERVE__TOKEN
      kv-cache.py serve --host 0.0.0.0

    exit code: 0 ended by a signal, 2 bad input
    """,
)

RUN = Command(name="run", options=OfRun, of_run=True, about=ABOUT_RUN)


def main(argv: Sequence[str]) -> int:
    """Serve until a signal; the exit code. UsageError is the caller's to print."""
    options = COMMAND.parse(argv)
    begin_logging()
    try:
        from kv_cache.web.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "h11", "anyio"):
            raise
        hint = install_hint("web")
        raise UsageError(f"serve needs {error.name}, which is not installed: {hint}") from None
    commands = forms()
    serve(options, commands, lambda url: print(f"serving {url}  (Ctrl-C ends it)", flush=True))
    return Exit.DONE


def forms() -> "dict[str, WebCommand]":
    """Return every command that may be started from a page, as a form, by its name."""
    from kv_cache.web.classes import COMMANDS_NEVER

    every = {command.name: command for command in every_command()}
    return {name: _form(each) for name, each in every.items() if name not in COMMANDS_NEVER}


def every_command() -> Iterator[Command[Any]]:
    """Yield each command of the command line, as its module declares it."""
    yield RUN
    for module in dict.fromkeys([*COMMANDS.values(), "mlperf_run"]):
        for value in vars(import_module(f"kv_cache.cli.{module}")).values():
            if isinstance(value, Command) and value is not RUN:
                yield value


def _form(command: Command[Any]) -> "WebCommand":
    from kv_cache.web.commands import WebCommand

    def check(words: Sequence[str]) -> Config | None:
        if not command.of_run:
            command.parse(words)
            return None
        _, invocation = command.parse_with_run(words)
        return invocation.config()

    return WebCommand(
        command.name, command.about, command.options, check, of_run=command.of_run,
        measures=command.name in (*ON_DEVICES, "mlperf run"),
    )  # fmt: skip
