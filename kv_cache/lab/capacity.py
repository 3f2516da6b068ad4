"""How much room a cache has, in the words of who asks: `10%`, `64GiB`, `9971blocks`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from kv_cache.core.errors import ConfigError, did_you_mean
from kv_cache.core.units import GIB, KIB, MIB
from kv_cache.lab.accesses import Accesses

_BYTES: Mapping[str, int] = {
    "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_SHARE, _BLOCKS = "%", "blocks"
_FORM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z%]+)")
_MOST_BYTES = 10**17
MOST = 32
"""Capacities of one study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """`text` is as it was asked for; `unit` one of those above."""

    text: str
    amount: Decimal
    unit: str

    def room_bytes(self, accesses: Accesses) -> int:
        """For these accesses: a share is of the bytes of all their blocks, each once; a number of
        blocks is one of their mean size."""
        if self.unit == _SHARE:
            return int(accesses.working_set_bytes * self.amount / 100)
        if self.unit == _BLOCKS:
            return int(self.amount * accesses.working_set_bytes / max(1, accesses.unique))
        return self.nbytes or 0

    @property
    def nbytes(self) -> int | None:
        """Bytes, where they do not depend on what is asked for."""
        return int(self.amount * _BYTES[self.unit]) if self.unit in _BYTES else None


def capacities_of(text: str, flag: str) -> list[Capacity]:
    """Parse a list with commas. Raises ConfigError that names the flag."""
    capacities = [_capacity(part.strip(), flag) for part in text.split(",")]
    for place, each in enumerate(capacities):
        if each.text in [other.text for other in capacities[:place]]:
            raise ConfigError(f"{flag}: duplicate {each.text}; keep one")
    if len(capacities) > MOST:
        raise ConfigError(
            f"{flag} has {len(capacities)} capacities, more than {MOST}; take some away"
        )
    return capacities


def _capacity(text: str, flag: str) -> Capacity:
    form = _FORM.fullmatch(text)
    if form is None:
        raise ConfigError(
            f"{flag}: {text!r} is no capacity; give a share as 10%, bytes as 64GiB, or 9971blocks"
        )
    amount, unit = Decimal(form[1]), form[2]
    if unit not in (_SHARE, _BLOCKS, *_BYTES):
        near = did_you_mean(unit, (_SHARE, _BLOCKS, *_BYTES))
        raise ConfigError(f"{flag}: {text!r} has the unit {unit!r}, which is none.{near}")
    if not amount:
        raise ConfigError(f"{flag}: {text!r} is no room at all; give more than 0")
    if unit == _SHARE and amount > 100:
        raise ConfigError(f"{flag}: {text!r} is more than all that is asked for; give at most 100%")
    if amount * _BYTES.get(unit, 1) > _MOST_BYTES:
        raise ConfigError(f"{flag}: {text!r} is larger than any cache; give less")
    return Capacity(text=text, amount=amount, unit=unit)
