"""The SLOs of a class of requests, and how they are written."""

import re
from decimal import Context, Decimal
from enum import StrEnum
from math import inf
from typing import TypeVar

from msgspec import Struct

from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.kinds import Outcome, Qos
from kv_cache.core.record import RequestRecord
from kv_cache.core.units import NS_PER_MS, NS_PER_S, NS_PER_US


class SloMeasure(StrEnum):
    """Which latency of a request an SLO is about; both count from the intended instant."""

    RESPONSE = "response"
    TTFT = "ttft"


class Slo(Struct, frozen=True, kw_only=True):
    """`percent` of a class's requests answer within `limit_ns`."""

    qos: Qos
    percent: float  # above 0 and below 100
    limit_ns: int
    measure: SloMeasure = SloMeasure.RESPONSE

    @property
    def allowed_share(self) -> float:
        """The share of requests that may be over the limit."""
        return 1 - self.percent / 100

    def used_by(self, record: RequestRecord) -> float:
        """Return the share of the limit that a request which has ended took; above 1 it was over.
        One that was not answered took all that there is."""
        took = record.response_ns if record.outcome is Outcome.COMPLETED else None
        if took is not None and self.measure is SloMeasure.TTFT and record.ttft_ns is not None:
            took = record.ttft_ns
        return inf if took is None else took / self.limit_ns

    def __str__(self) -> str:
        """Write it as `parse_slos` reads it, without loss."""
        measure = "" if self.measure is SloMeasure.RESPONSE else f"{self.measure}:"
        percent = _plain(Decimal(str(self.percent)))
        limit_ms = _plain(Decimal(self.limit_ns).scaleb(-6, _EXACT))
        return f"{self.qos}:{measure}p{percent}<{limit_ms}ms"


# --- as they are written ---------------------------------------------------------------------

_Word = TypeVar("_Word", Qos, SloMeasure)
_EXACT = Context(prec=60)
_UNITS = {"us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_LEAST_PERCENT, _MOST_PERCENT = Decimal(50), Decimal("99.99")
_PERCENT = re.compile(r"p([0-9]{1,3}(?:\.[0-9]{1,9})?)")
_LIMIT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([^0-9.\s]*)")
_LONGEST_NS = 2**63 - 1  # what a histogram can hold
_EXAMPLE = "'interactive:p95<50ms'"


def parse_slos(text: str) -> tuple[Slo, ...]:
    """Parse `CLASS:[ttft:|response:]pPERCENT<LIMIT` with commas between, LIMIT in us, ms or s.

    Raises `ConfigError` for what is not an SLO, and for two of the same latency.
    """
    if not text.strip():
        raise ConfigError(f"the SLO is empty; write one such as {_EXAMPLE}")
    slos: dict[tuple[Qos, SloMeasure, float], Slo] = {}
    for part in text.split(","):
        slo = _slo(part.strip(), text)
        key = (slo.qos, slo.measure, slo.percent)
        if key in slos:
            raise _bad(part.strip(), f"is about the same as {str(slos[key])!r}; keep one")
        slos[key] = slo
    return tuple(slos.values())


def _slo(part: str, text: str) -> Slo:
    if not part:
        raise ConfigError(f"SLO {text!r} has nothing on one side of a comma; take the comma away")
    what, sign, limit = (word.strip() for word in part.lower().partition("<"))
    if not sign or not limit:
        raise _bad(part, f"has no limit; write one after '<', in quotes, as in {_EXAMPLE}")
    names = [name.strip() for name in what.split(":")]
    if len(names) not in (2, 3):
        raise _bad(part, f"is not CLASS:pPERCENT or CLASS:MEASURE:pPERCENT, as in {_EXAMPLE}")
    return Slo(
        qos=_member(part, names[0], Qos, "class of requests"),
        measure=_member(part, names[1], SloMeasure, "latency")
        if len(names) == 3
        else SloMeasure.RESPONSE,
        percent=_percent(part, names[-1]),
        limit_ns=_limit_ns(part, limit),
    )


def _member(part: str, name: str, words: type[_Word], what: str) -> _Word:
    known = [word.value for word in words]
    if name not in known:
        raise _bad(part, f"names no {what} with {name!r}.{did_you_mean(name, known)}")
    return words(name)


def _percent(part: str, word: str) -> float:
    match = _PERCENT.fullmatch(word)
    if not match or not _LEAST_PERCENT <= Decimal(match[1]) <= _MOST_PERCENT:
        raise _bad(part, f"has {word!r} for a percentile, which is one of p50 to p99.99; use p95")
    return float(match[1])


def _limit_ns(part: str, word: str) -> int:
    match = _LIMIT.fullmatch(word)
    if not match:
        raise _bad(part, f"has {word!r} for a limit, which is a number and a unit, as 50ms")
    number, unit = match.groups()
    if not unit:
        raise _bad(part, f"has a limit without a unit; write {number}ms, or us or s")
    if unit not in _UNITS:
        raise _bad(part, f"has the unit {unit!r} for a limit, which is in us, ms or s")
    limit_ns = round(Decimal(number) * _UNITS[unit])
    if limit_ns < 1:
        raise _bad(part, "has a limit below 1 ns, which nothing keeps; write one above 0")
    if limit_ns > _LONGEST_NS:
        raise _bad(part, "has a limit of centuries, which everything keeps; write a shorter one")
    return limit_ns


def _bad(part: str, what: str) -> ConfigError:
    return ConfigError(f"SLO {part!r} {what}")


def _plain(number: Decimal) -> str:
    """Write a number without exponent and closing zeros."""
    return f"{number.normalize(_EXACT):f}"
