"""The wheel's build: with the native transfers compiled, where there is a compiler.

hatchling compiles nothing itself; it loads this file by its path (pyproject.toml), when the
packages that the program needs are not there. The library calls none of Python, so one wheel is for
all versions of it.
"""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeTransfers(BuildHookInterface):  # type: ignore[misc]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library in the source tree, and have the wheel hold it."""
        path = Path(__file__).with_name("building.py")
        spec = importlib.util.spec_from_file_location("native_building", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.app.display_info(module.build())
        library = module.library_path()
        if library.exists():
            build_data["artifacts"].append(f"kv_cache/tiers/native/{library.name}")
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
