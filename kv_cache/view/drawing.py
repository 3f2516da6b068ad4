"""What a page and a picture draw alike: the colours of lines and parts, and the numbers that a
logarithmic axis counts in.

The colours are those of Okabe and Ito ("Color universal design", 2008), darkened until they can be
read as text on white: people with any colour vision tell them apart, and no line is told from
another by its colour alone.
"""

from math import ceil, floor, log10

COLOURS = (
    *("#0068a8", "#c24e00", "#00795a", "#84417a", "#4a4f57", "#8a6100", "#b0266d", "#3a4fc4"),
    "#6a7f00",
)
"""In light mode; `report.css` has them as --c0 to --c8, and others for a dark page."""
LINE_COLOURS = len(COLOURS) - 1
"""How many of them lines have; a page keeps the last for muted ones."""

LADDERS: tuple[tuple[float, ...], ...] = (
    (1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,),
)  # fmt: skip
"""Steps within a factor of ten, the finest first. `report.js` gets them with the charts."""


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """Return numbers to count in between two positive ones: 1 2 5 10 20 50, or fewer if those are
    many."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in LADDERS:
        numbers = [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]
        if len(numbers) <= most:
            return numbers
    return numbers[:: ceil(len(numbers) / most)]
