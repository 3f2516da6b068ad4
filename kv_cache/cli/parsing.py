"""What the parsers of the commands beside `run` share."""

import argparse
from typing import NoReturn

from kv_cache.core.errors import ConfigError


class CommandParser(argparse.ArgumentParser):
    """Bad usage is one sentence, like any other bad input, and not printed with the usage."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.split()[-1]
        raise ConfigError(f"{command}: {message}; see {command} --help")
