"""Values of plain documents by dotted path. A document may come from anywhere, so nothing here
takes a shape for granted."""

from collections.abc import Iterator, Mapping
from typing import Any


def value_at(section: Any, path: str) -> Any:
    """Return the value at a dotted path, None if there is none."""
    value: Any = section
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def list_at(section: Any, path: str) -> list[Any]:
    """Return the list at a dotted path, empty if there is none."""
    value = value_at(section, path)
    return value if isinstance(value, list) else []


def number_at(section: Any, path: str) -> float | None:
    """Return the number at a dotted path, None if there is none."""
    return as_number(value_at(section, path))


def as_number(value: Any) -> float | None:
    """Return a value that is a number, None for any other."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value below nested mappings with its dotted path, which begins with `prefix`."""
    if not isinstance(value, Mapping):
        yield prefix, value
        return
    for name, inner in value.items():
        yield from flat(inner, f"{prefix}.{name}" if prefix else str(name))
