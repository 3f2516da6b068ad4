"""The environment of a command: the machine, and the stack below each of its directories."""

from pathlib import Path
from typing import Any

from kv_cache.bench.probes.stack import stack_of
from kv_cache.files.environment import capture
from kv_cache.tiers.objects.place import ObjectPlace


def captured(*places: Path | ObjectPlace) -> dict[str, Any]:
    """Return the environment of a result: the machine, and the stack below each place."""
    return capture(*places, stack=lambda place: stack_of([place]).to_json())
