"""What the parsers of the commands beside `run` share."""

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from kv_cache.cli.flags import Once, build_parser, unknown
from kv_cache.core.errors import ConfigError, did_you_mean

_UNKNOWN = re.compile(r"unrecognized arguments: (-[^\s=]+)")


class CommandParser(argparse.ArgumentParser):
    """Bad usage is one sentence, like any other bad input, and not printed with the usage."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.split()[-1]
        raise ConfigError(f"{command}: {message}; see {command} --help.{self._near(message)}")

    def _near(self, message: str) -> str:
        found = _UNKNOWN.match(message)
        near = did_you_mean(found[1], self._option_string_actions) if found else ""
        return near if near.startswith(" Did") else ""


def own_and_rest(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Of commands that are not `command.Command` yet: their options, and the words for `run`."""
    options, rest = parser.parse_known_args(list(argv))
    known = tuple(build_parser()._option_string_actions)
    for word in rest:
        flag = word.split("=")[0]
        if flag.startswith("--") and not any(each.startswith(flag) for each in known):
            both = build_parser()
            both._option_string_actions.update(parser._option_string_actions)
            raise unknown([flag], both)
    return options, rest


__all__ = ["CommandParser", "Once", "own_and_rest"]
