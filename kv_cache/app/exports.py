"""What a run tells beside its result: files that are written once it is there, and metrics while
it goes on. All is checked before it begins."""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from kv_cache import __version__
from kv_cache.bench.endpoint import Endpoint, check_endpoint
from kv_cache.bench.run import RealRun
from kv_cache.config.root import Config
from kv_cache.core.errors import PlaceError, UsageError
from kv_cache.metrics.exposition import about, exposition, measured
from kv_cache.view.sheets import FLAG, check_target, target_of

log = logging.getLogger("kv_cache")


def check_exports(config: Config, taken: Mapping[str, Sequence[str | Path | None]]) -> list[str]:
    """Refuse places that cannot be written, hold somebody else's file, or are `taken` (flag ->
    files) by another of the run's own. Sentences for what will differ from what was asked. Raises
    PlaceError."""
    asked, port = config.output.xlsx_output, config.output.metrics_port
    if port is not None and not config.run.virtual_time:
        check_endpoint(config.output.metrics_host, port)
    if asked is None:
        return []
    target = check_target(Path(asked))
    for other, files in taken.items():
        if any(file is not None and _same(target.path, file) for file in files):
            raise PlaceError(f"{FLAG} {asked}: {other} has the same file; name another")
    return [] if target.note is None else [target.note]


def _same(one: Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def write_exports(config: Config, document: Mapping[str, Any]) -> tuple[dict[str, str], bool]:
    """What was written, by what it is; and whether all was that was asked for and has content."""
    wanted = config.output.xlsx_output
    if wanted is None:
        return {}, True
    if "summary" not in document:
        log.warning("no request completed, so there is no summary to write to %s", wanted)
        return {}, True
    target = target_of(Path(wanted))
    try:
        target.write(document)
    except (OSError, UsageError) as error:
        log.error("the summary could not be written to %s: %s", target.path, error)
        return {}, False
    return {"sheets": str(target.path)}, True


# --- metrics while a run goes on ---------------------------------------------------------------


def endpoint(config: Config) -> AbstractContextManager[Endpoint | None]:
    """Listens as long as the context lasts, if that was asked for. Raises PlaceError."""
    port = config.output.metrics_port
    if port is None:
        return nullcontext()
    info = _info(config)
    return Endpoint(config.output.metrics_host, port, lambda: exposition(about(info, "starting")))


def watch(config: Config, served: Endpoint | None, run: RealRun) -> None:
    """From now on the run's numbers are told."""
    if served is None:
        return
    info = _info(config)

    def tells() -> str:
        numbers = measured(run.recorder, run.totals, run.latest)
        return exposition([*about(info, run.phase), *numbers])

    served.render = tells


def _info(config: Config) -> dict[str, str]:
    run = config.run
    return {
        "version": __version__,
        "model": ",".join(run.model_mix) or run.model,
        "semantics": config.semantics.preset,
        "seed": str(run.seed),
    }
