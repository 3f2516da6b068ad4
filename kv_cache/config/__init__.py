"""The configuration of a run: one frozen tree of sections, read strictly and printed back.

`schema` is the layer under it, `sections` and `root` hold the options, `load` reads files.
"""

from kv_cache.config.load import load_config
from kv_cache.config.root import Config
from kv_cache.config.schema import describe, print_config, to_mapping
from kv_cache.config.yaml_files import data_file

__all__ = ["Config", "data_file", "describe", "load_config", "print_config", "to_mapping"]
