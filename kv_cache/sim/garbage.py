"""How often the interpreter looks for cycles of objects while time is virtual."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 100_000
"""Objects after which cycles are looked for. A simulation makes next to none, and with the
interpreter's 700 a tenth (a run) or a sixth (a cluster) of its time is spent in looking."""


@contextmanager
def rarely_looked_for() -> Iterator[None]:
    """Look for garbage less often."""
    young, *older = gc.get_threshold()
    gc.set_threshold(_YOUNG, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
