"""The grammar that all commands share: a dataclass of options becomes flags, words, environment
variables, `--set KEY=VALUE`, help and errors.

A command declares its options once, as fields made by `config.schema.opt`, beside the use case that
takes them (`app/`). The order of precedence is: default, environment, `--set`, flag.
"""

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from kv_cache.cli.flags import (
    Formatter,
    Parser,
    add_help,
    add_option,
    add_run_flags,
    add_set,
    begin_logging,
    from_environment,
    invocation_of,
    joined,
    log_environment,
    set_values,
    variable_of,
)
from kv_cache.config.load import Invocation
from kv_cache.config.schema import Option, describe, overlay
from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.exits import Exit

T = TypeVar("T")

_RUN_FLAGS = "Flags of run may follow: see run --help-all."


@dataclass(frozen=True)
class OfRun:
    """All options are those of a run."""


@dataclass(frozen=True, kw_only=True)
class Command(Generic[T]):
    """What a command is called, the options that it takes, and the words that explain it.

    `about` is said before the options and `epilog` (examples, exit codes) after them. With
    `of_run`, flags of `run` are taken too; one that the command has itself is the command's.
    """

    name: str
    options: type[T]
    about: str
    epilog: str = ""
    of_run: bool = False
    program: str = "kv-cache.py"
    abbreviations: bool = False

    def parse(self, argv: Sequence[str]) -> T:
        """Return the command's options. Raises ConfigError; help prints and raises SystemExit."""
        options, environment = self._read(self.parser().values(argv))
        if environment:
            begin_logging()
            log_environment(environment.values())
        return options

    def parse_with_run(self, argv: Sequence[str]) -> tuple[T, Invocation]:
        """Return the command's options, and what is said of the run. Raises ConfigError."""
        flags = self.parser().values(argv)
        ours = {*map(flags_name, self._known.values()), "--set"}
        keys = flags.get("--set", ())
        of_run = {name: value for name, value in flags.items() if name not in ours}
        of_run["--set"] = [word for word in keys if word.partition("=")[0] not in self._known]
        of_command = {name: value for name, value in flags.items() if name in ours}
        of_command["--set"] = [word for word in keys if word.partition("=")[0] in self._known]
        options, environment = self._read(of_command)
        invocation = invocation_of(of_run)
        return options, replace(invocation, environment={**environment, **invocation.environment})

    @property
    def _has_own_set(self) -> bool:
        """Whether `--set` means something else to this command than its options by their keys."""
        return any(option.flag == "--set" for option in self._known.values())

    @property
    def variables(self) -> frozenset[str]:
        """The environment variables of the options."""
        return frozenset(variable_of(path, self.name) for path in self._known)

    @cached_property
    def _known(self) -> Mapping[str, Option]:
        return {option.path: option for option in describe(self.options)}

    def _read(self, flags: Mapping[str, Any]) -> tuple[T, Mapping[str, str]]:
        """Return the options, and the environment variables that set some of them, by path."""
        by_flag = {flags_name(option): option.path for option in self._known.values()}
        words = {by_flag[name]: value for name, value in flags.items() if name in by_flag}
        environment = from_environment(self._known, self.name)
        over = {
            **set_values(() if self._has_own_set else flags.get("--set", ()), self._known),
            **{path: joined(value) for path, value in words.items()},
        }
        values = {**environment.values, **over}
        for path, option in self._known.items():
            if option.rule.required and values.get(path) in (None, ()):
                raise ConfigError(f"{self.name}: {option.flag} is missing; see {self.name} --help")
        options = overlay(self.options(), {k: v for k, v in values.items() if v is not None})
        variables = {k: v for k, v in environment.variables.items() if k not in over}
        return options, variables

    def parser(self) -> Parser:
        """Return the parser of the command line."""
        parser = self._parser()
        rare = any(option.rule.rare for option in self._known.values())
        add_help(parser, self._page() if rare else None)
        self._add(parser, rare=True)
        if self.of_run:
            add_run_flags(parser, hidden=True)
        return parser

    def _page(self) -> str:
        """Return the help without the rare options."""
        parser = self._parser()
        self._add(parser, rare=False)
        return f"{parser.format_help()}\n{self.name} --help-all shows all options.\n"

    def _parser(self) -> Parser:
        parts = [_RUN_FLAGS if self.of_run else "", textwrap.dedent(self.epilog).rstrip()]
        return Parser(
            prog=f"{self.program} {self.name}".strip(),
            description=textwrap.dedent(self.about),
            epilog="\n\n".join(filter(None, parts)),
            formatter_class=Formatter,
            argument_default=argparse.SUPPRESS,
            add_help=False,
            allow_abbrev=self.abbreviations,
        )

    def _add(self, parser: Parser, *, rare: bool) -> None:
        for option in sorted(self._known.values(), key=lambda option: not option.rule.required):
            if option.flag is not None and (rare or not option.rule.rare):
                add_option(parser, option)
        if not self.of_run and not self._has_own_set:
            add_set(parser, _example(self._known))


def dispatch(
    name: str,
    commands: Mapping[str, Callable[[Sequence[str]], int]],
    argv: Sequence[str],
    about: str,
) -> int:
    """Run the command of `commands` that the first word names, and return its exit code. Without a
    word, or for --help, print `about`. Raises ConfigError."""
    if not argv or argv[0] in ("-h", "--help", "--help-all"):
        print(textwrap.dedent(about), end="")
        return Exit.DONE
    command = commands.get(argv[0])
    if command is None:
        near = did_you_mean(argv[0], commands)
        raise ConfigError(f"{name} {argv[0]!r}: there is no such command.{near}")
    return command(argv[1:])


def flags_name(option: Option) -> str:
    """Return where the parser keeps an option: its flag, or its path if it is a bare word."""
    flag = option.flag or ""
    return flag if flag.startswith("-") else option.path


def _example(known: Mapping[str, Option]) -> str:
    for option in known.values():
        if option.kind in (int, float) and option.default is not None:
            return f"{option.path}={option.default:g}"
    return "KEY=VALUE"
