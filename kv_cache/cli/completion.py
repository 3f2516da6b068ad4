"""`kv-cache.py completion SHELL`: a script by which a shell completes commands and flags."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from kv_cache.cli import COMMANDS
from kv_cache.cli.command import Command
from kv_cache.cli.flags import build_parser
from kv_cache.config.schema import opt

PROGRAMS = ("kv-cache.py", "kv-cache")


@dataclass(frozen=True)
class CompletionOptions:
    """Whose completion."""

    shell: str = opt("bash", "Shell", choices=("bash", "zsh", "fish"), flag="SHELL", required=True)


COMMAND = Command(
    name="completion",
    options=CompletionOptions,
    about="""\
    Print a script by which a shell completes commands, flags and their choices.
    """,
    epilog="""\
    examples:
      eval "$(kv-cache.py completion bash)"
      eval "$(kv-cache.py completion zsh)"
      kv-cache.py completion fish | source
    """,
)


def main(argv: Sequence[str]) -> int:
    """Print the script; the exit code."""
    shell = COMMAND.parse(argv).shell
    words = dict(_words())
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](words), end="")
    return 0


def _words() -> Iterator[tuple[str, list[str]]]:
    """Yield each command, and subcommand as `trace stats`, with its flags."""
    for name, module in COMMANDS.items():
        loaded = import_module(f"kv_cache.cli.{module}")
        if name == "run":
            yield name, _flags(build_parser())
            continue
        if name == "mlperf":
            from kv_cache.cli import mlperf_run

            yield "mlperf run", _flags(mlperf_run.COMMAND.parser())
        commands = [each for each in vars(loaded).values() if isinstance(each, Command)]
        table: Mapping[str, object] = getattr(loaded, "SUBCOMMANDS", {})
        if table:
            yield name, list(table)
        for command in commands:
            yield command.name, _flags(command.parser())


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for flag in parser._option_string_actions if flag.startswith("--")]


def _cases(words: Mapping[str, Sequence[str]]) -> str:
    """Return the lines of a `case` on "command subcommand"."""
    lines = []
    for name, flags in sorted(words.items(), key=lambda item: -item[0].count(" ")):
        pattern = f'"{name}"*' if " " in name else f'"{name} "*'
        lines.append(f'    {pattern}) words="{" ".join(flags)}" ;;')
    return "\n".join(lines)


def _bash(words: Mapping[str, Sequence[str]]) -> str:
    commands = " ".join(COMMANDS)
    run = " ".join(words["run"])
    return f"""\
_kv_cache() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands} {run}"
  else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{_cases(words)}
    *) words="{run}" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  [ "${{#COMPREPLY[@]}}" -eq 0 ] && COMPREPLY=($(compgen -f -- "$cur"))
}}
complete -F _kv_cache {" ".join(PROGRAMS)}
"""


def _zsh(words: Mapping[str, Sequence[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: Mapping[str, Sequence[str]]) -> str:
    lines = []
    for program in PROGRAMS:
        first = f"complete -c {program} -n __fish_use_subcommand"
        lines += [f"{first} -a {name}" for name in COMMANDS]
        for name, flags in words.items():
            seen = " ".join(f"__fish_seen_subcommand_from {word};" for word in name.split())
            condition = seen.rstrip(";").replace("; ", "; and ")
            for flag in flags:
                kind = f"-l {flag[2:]}" if flag.startswith("--") else f"-a {flag}"
                lines.append(f"complete -c {program} -n '{condition}' {kind}")
    return "\n".join(lines) + "\n"
