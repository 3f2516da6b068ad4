"""What the parsers of the commands beside `run` share."""

import argparse
import re
from typing import Any, NoReturn

from kv_cache.core.errors import ConfigError, did_you_mean

RECLAIM = (
    "host known to be dead, whose runs' files are removed from the directory; those of any other "
    "host may be in use, and are refused"
)
_UNKNOWN = re.compile(r"unrecognized arguments: (-[^\s=]+)")


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


class CommandParser(argparse.ArgumentParser):
    """Bad usage is one sentence, like any other bad input, and not printed with the usage."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.split()[-1]
        raise ConfigError(f"{command}: {message}; see {command} --help.{self._near(message)}")

    def _near(self, message: str) -> str:
        found = _UNKNOWN.match(message)
        near = did_you_mean(found[1], self._option_string_actions) if found else ""
        return near if near.startswith(" Did") else ""
