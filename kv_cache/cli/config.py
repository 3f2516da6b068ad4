"""`kv-cache.py config`: every option with its default, unit and help, as a file that loads."""

from collections.abc import Sequence
from pathlib import Path

from kv_cache.config.load import load_config
from kv_cache.config.schema import print_config
from kv_cache.core.errors import ConfigError

_HELP = """usage: kv-cache.py config [FILE | NAME]

Print the effective configuration of FILE (or of a shipped one, such as quick; without either, the
defaults) as YAML: every option with its value, help, unit, bounds and flag. The output is itself
a configuration file: kv-cache.py config > my.yaml; kv-cache.py run --config my.yaml
"""


def main(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(_HELP, end="")
        return 0
    if len(argv) > 1 or any(word.startswith("-") for word in argv):
        raise ConfigError(
            f"config takes at most one file or name, not {' '.join(argv)!r}; see config --help"
        )
    print(print_config(load_config(Path(argv[0]) if argv else None)), end="")
    return 0
