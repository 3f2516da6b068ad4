"""The laws of section `lengths`, as objects. Raises ConfigError for what makes no law."""

from dataclasses import fields
from typing import Any

from kv_cache.config.schema import show
from kv_cache.config.workload_sections import LawConfig, LengthsConfig
from kv_cache.core.errors import ConfigError
from kv_cache.workload.lengths import (
    Empirical,
    Fixed,
    Law,
    Lengths,
    LogNormal,
    Uniform,
    Zipf,
)

_NEEDED = {
    "personas": (),
    "fixed": ("value",),
    "uniform": ("low", "high"),
    "lognormal": ("median", "sigma"),
    "zipf": ("exponent", "low", "high"),
    "empirical": ("quantiles", "values"),
}
_ALLOWED = {"lognormal": ("low", "high"), "zipf": ("step",)}

_MOST = {"prompt": 100_000_000, "output": 100_000_000, "think_s": 86_400, "turns": 1_000_000}
"""The greatest value of each: the bounds of user_templates, and a number of turns."""


def build_lengths(config: LengthsConfig) -> Lengths:
    laws = {name: _law(name, getattr(config, name)) for name in _MOST}
    return Lengths(**laws)


def _law(name: str, given: LawConfig) -> Law | None:
    path = f"lengths.{name}"
    _check_keys(path, given)
    if given.law == "personas":
        return None
    try:
        law = _built(given, name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if law.quantile(1.0) > _MOST[name]:
        raise ConfigError(
            f"{path} reaches {law.quantile(1.0):g}; lower it to at most {_MOST[name]}"
        )
    return law


def _check_keys(path: str, given: LawConfig) -> None:
    """A law has all that it needs, and nothing that it would ignore."""
    needed, allowed = _NEEDED[given.law], _ALLOWED.get(given.law, ())
    for key in needed:
        if getattr(given, key) is None:
            raise ConfigError(f"{path}.{key} is missing: law {given.law} needs {_and(needed)}")
    for key in (f.name for f in fields(LawConfig) if f.name != "law"):
        value = getattr(given, key)
        if value != getattr(LawConfig(), key) and key not in (*needed, *allowed):
            has = _and((*needed, *allowed)) or "no other keys"
            raise ConfigError(
                f"{path}.{key} is {show(value)}, but law {given.law} has {has}; leave it out"
            )


def _and(names: tuple[str, ...]) -> str:
    return " and ".join(names)


def _built(given: LawConfig, name: str) -> Law:
    wanted: Any = given  # that what a law needs is there has been checked
    match given.law:
        case "fixed":
            return Fixed(value=wanted.value)
        case "uniform":
            return Uniform(low=wanted.low, high=wanted.high, steps=name != "think_s")
        case "lognormal":
            high = _MOST[name] if given.high is None else given.high
            low = given.low or 0.0
            return LogNormal.of_median(wanted.median, wanted.sigma, low=low, high=high)
        case "zipf":
            return Zipf(
                exponent=wanted.exponent, low=round(wanted.low), high=round(wanted.high),
                step=given.step,
            )  # fmt: skip
        case _:
            return Empirical(quantiles=wanted.quantiles, values=wanted.values)
