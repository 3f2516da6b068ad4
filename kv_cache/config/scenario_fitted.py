"""The workload of a scenario by a configuration that `trace fit` wrote: requests as long, as many
and as bursty as a trace's.

What such a file leaves out is not invented here: it says of no prompt that it is shared, so nothing
is but a session's own history.
"""

from collections.abc import Iterator
from pathlib import Path

from kv_cache.config.lengths import build_lengths
from kv_cache.config.root import Config
from kv_cache.config.scenario import LengthsSection, WorkloadSection
from kv_cache.config.schema import describe, overlay, show
from kv_cache.config.unread import value_at
from kv_cache.config.yaml_files import read_yaml
from kv_cache.core.errors import ConfigError

_SHARED = ("system_prompts", "tool_sets", "context_tokens", "documents", "reasoning_tokens")


def fitted_options(file: Path, work: WorkloadSection) -> dict[str, object]:
    """Return the options of a scenario, by path, that a file of `trace fit` gives in place of those
    of `work`. Raises ConfigError."""
    config = overlay(Config(), read_yaml(file), str(file))
    laws = build_lengths(config.lengths)
    if laws.prompt is None or laws.output is None:
        raise ConfigError(
            f"workload.fitted is {show(str(file))}, which has no laws of prompt and output; give a "
            "file that kv-cache.py trace fit wrote"
        )
    options: dict[str, object] = dict(
        _pace(config, 1.0 if laws.turns is None else laws.turns.mean())
    )
    options["source"] = "poisson" if work.source == "poisson" and not laws.turns else "sessions"
    if laws.turns is None:
        options["turns"] = [1, 1]
    options |= dict.fromkeys(_SHARED, 0)
    for law in describe(LengthsSection):
        options[f"lengths.{law.path}"] = value_at(config.lengths, law.path)
    return {f"workload.{name}": value for name, value in options.items()}


def _pace(config: Config, turns: float) -> Iterator[tuple[str, object]]:
    """Yield how sessions of `turns` requests on average begin. The rate of a file counts all
    requests, that of a scenario sessions."""
    default, arrival = WorkloadSection(), config.arrival
    if (arrival.mode == "open") is not (arrival.request_rate > 0):
        raise ConfigError(
            f"workload.fitted: arrival.mode is {arrival.mode} and arrival.request_rate "
            f"{arrival.request_rate:g}; give a rate to an open loop, and none to a closed one"
        )
    if arrival.mode == "closed":
        yield "concurrency", config.run.num_users
        yield "rate_per_s", default.rate_per_s
        yield "arrival_process", default.arrival_process
        return
    yield "concurrency", 0
    yield "rate_per_s", arrival.request_rate / turns
    yield "arrival_process", arrival.process
    yield "arrival_cv", arrival.cv
