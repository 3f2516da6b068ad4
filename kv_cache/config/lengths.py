"""The laws of section `lengths`, of a run or a scenario, as objects.

Raises ConfigError for what makes no law.
"""

from dataclasses import fields
from typing import Any, Protocol

from kv_cache.config.schema import show
from kv_cache.config.workload_sections import LawConfig
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

_MOST = {
    "prompt": 100_000_000, "first_prompt": 100_000_000, "output": 100_000_000,
    "think_s": 86_400, "turns": 1_000_000,
}  # fmt: skip
"""The greatest value of each: the bounds of user_templates, and a number of turns."""


class LengthSections(Protocol):
    """A section with a law of each kind."""

    @property
    def prompt(self) -> LawConfig: ...
    @property
    def first_prompt(self) -> LawConfig: ...
    @property
    def output(self) -> LawConfig: ...
    @property
    def think_s(self) -> LawConfig: ...
    @property
    def turns(self) -> LawConfig: ...
    @property
    def correlation(self) -> float: ...


def build_lengths(config: LengthSections, at: str = "lengths") -> Lengths:
    """Return the laws of a section, which messages call `at`. Raises ConfigError."""
    laws = {name: _law(name, getattr(config, name), f"{at}.{name}") for name in _MOST}
    return Lengths(**laws, correlation=config.correlation)


def _law(name: str, section: LawConfig, path: str) -> Law | None:
    _check_keys(path, section)
    if section.law == "personas":
        return None
    try:
        law = _built(section, name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if law.quantile(1.0) > _MOST[name]:
        raise ConfigError(
            f"{path} reaches {law.quantile(1.0):g}; lower it to at most {_MOST[name]}"
        )
    return law


def _check_keys(path: str, section: LawConfig) -> None:
    """A law has all that it needs, and nothing that it would ignore."""
    needed, allowed = _NEEDED[section.law], _ALLOWED.get(section.law, ())
    for key in needed:
        if getattr(section, key) is None:
            raise ConfigError(f"{path}.{key} is missing: law {section.law} needs {_and(needed)}")
    for key in (f.name for f in fields(LawConfig) if f.name != "law"):
        value = getattr(section, key)
        if value != getattr(LawConfig(), key) and key not in (*needed, *allowed):
            has = _and((*needed, *allowed)) or "no other keys"
            raise ConfigError(
                f"{path}.{key} is {show(value)}, but law {section.law} has {has}; leave it out"
            )


def _and(names: tuple[str, ...]) -> str:
    return " and ".join(names)


def _built(section: LawConfig, name: str) -> Law:
    wanted: Any = section  # that what a law needs is there has been checked
    match section.law:
        case "fixed":
            return Fixed(value=wanted.value)
        case "uniform":
            return Uniform(low=wanted.low, high=wanted.high, steps=name != "think_s")
        case "lognormal":
            high = _MOST[name] if section.high is None else section.high
            low = section.low or 0.0
            return LogNormal.of_median(wanted.median, wanted.sigma, low=low, high=high)
        case "zipf":
            return Zipf(
                exponent=wanted.exponent, low=round(wanted.low), high=round(wanted.high),
                step=section.step,
            )  # fmt: skip
        case _:
            return Empirical(quantiles=wanted.quantiles, values=wanted.values)
