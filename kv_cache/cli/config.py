"""`kv-cache.py config`: every option with its default, unit and help, as a file that loads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kv_cache.cli.command import Command
from kv_cache.config.schema import opt, print_config
from kv_cache.core.errors import ConfigError
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
    of_run=True,
    about="""\
    Print an effective configuration as YAML: every option with its value, help, unit, bounds and
    flag. The output is itself a configuration file.
    """,
    epilog="""\
    example:
      kv-cache.py config > my.yaml; kv-cache.py run --config my.yaml
      kv-cache.py config quick --set run.num_users=50 > my.yaml
    """,
)


def main(argv: Sequence[str]) -> int:
    """Print; the exit code. UsageError is the caller's to print."""
    options, invocation = COMMAND.parse_with_run(argv)
    if options.file is not None:
        if invocation.config_path is not None:
            raise ConfigError("config: FILE and --config are the same; give one of them")
        invocation = replace(invocation, config_path=Path(options.file))
    print(print_config(invocation.config()), end="")
    return Exit.DONE
