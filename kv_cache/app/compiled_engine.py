"""Which engine computes `sim` and `lab`: their Python text, or what `compile` made of it."""

from kv_cache.core.errors import ConfigError
from kv_cache.policy.eviction import base


def engine_name() -> str:
    """Return `compiled` if the engine is machine code, else `python`. Its modules are compiled all
    or none (`cli/compiled.py`), so one of them shows it."""
    return "python" if (base.__file__ or "").endswith(".py") else "compiled"


def require_pure(pure: bool) -> None:
    """Raise ConfigError if `pure` is wanted, and the compiled engine is loaded already."""
    if pure and engine_name() == "compiled":
        raise ConfigError("the compiled engine is loaded already; give --pure as a flag")
