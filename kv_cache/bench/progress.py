"""How long work reports its progress. How that is drawn is not known here: a terminal draws it, and
`SILENT` does not."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from kv_cache.config.root import Config
from kv_cache.core.callbacks import ignore
from kv_cache.metrics.slo import Slo

if TYPE_CHECKING:
    from kv_cache.bench.run import RealRun


class Bar(Protocol):
    """How far one piece of work has come."""

    def to(self, done: float) -> None:
        """Set the amount that is done, in the bar's unit; without a unit, the share."""

    def note(self, text: str) -> None:
        """Set what is said beside it."""


class Progress(Protocol):
    """Shows work in progress."""

    def bar(
        self, what: str = "", *, unit: str = "", total: float | None = None, scale: bool = False
    ) -> AbstractContextManager[Bar]:
        """Show a bar while the context lasts. Without a unit it shows a share of `total`, and
        without both its note alone. `scale`: large numbers get k, M, G."""

    def run(
        self, config: Config, prefix: str = "", slos: Sequence[Slo] | None = None
    ) -> AbstractContextManager[Callable[["RealRun"], None]]:
        """Show a real run, whose ticks call what the context gives. `slos`: those of the
        configuration's classes, if not given."""


class _NoBar:
    def to(self, done: float) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""


class _Silent:
    """Shows nothing."""

    def bar(
        self, what: str = "", *, unit: str = "", total: float | None = None, scale: bool = False
    ) -> AbstractContextManager[Bar]:
        return nullcontext(_NoBar())

    def run(
        self, config: Config, prefix: str = "", slos: Sequence[Slo] | None = None
    ) -> AbstractContextManager[Callable[["RealRun"], None]]:
        return nullcontext(ignore)


SILENT: Progress = _Silent()
