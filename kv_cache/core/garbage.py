"""How often the interpreter looks for cycles of objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 100_000
"""Objects after which cycles are looked for. Runs and simulations make next to none. With the
interpreter's 700 a tenth (a run) or a sixth (a cluster) of their time is spent in looking, and the
threads of a run all stand meanwhile: for up to 0.2 s where the cache has many blocks."""


@contextmanager
def rarely_looked_for(*, first: bool = False) -> Iterator[None]:
    """Look for garbage less often; `first`: and once before."""
    if first:
        gc.collect()
    young, *older = gc.get_threshold()
    gc.set_threshold(_YOUNG, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
