"""`kv-cache.py config`: every option with its default, unit and help, as a file that loads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_cache.cli.command import Command
from kv_cache.config.load import load_config
from kv_cache.config.schema import opt, print_config
from kv_cache.core.exits import Exit


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """Whose configuration is printed."""

    file: str | None = opt(
        None, "File, or a shipped configuration such as quick; if not given, the defaults",
        flag="FILE", metavar="PATH",
    )  # fmt: skip


COMMAND = Command(
    name="config",
    options=ConfigOptions,
    about="""\
    Print an effective configuration as YAML: every option with its value, help, unit, bounds and
    flag. The output is itself a configuration file.
    """,
    epilog="""\
    example:
      kv-cache.py config > my.yaml; kv-cache.py run --config my.yaml
    """,
)


def main(argv: Sequence[str]) -> int:
    """Print; the exit code. UsageError is the caller's to print."""
    file = COMMAND.parse(argv).file
    print(print_config(load_config(None if file is None else Path(file))), end="")
    return Exit.DONE
