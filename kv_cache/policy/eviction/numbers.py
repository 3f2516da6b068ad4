"""The numbers of a policy that may be changed, to compare it with itself: each has bounds outside
which the policy would break its laws, or be another one."""

MOST = 1_000_000
"""Of counts and weights: more is no number that anybody means."""


def check(**numbers: tuple[float, float, float]) -> None:
    """Each number is given with the least and the most that it may be. Raises ValueError."""
    for name, (value, least, most) in numbers.items():
        if not least <= value <= most:  # as a NaN is not
            raise ValueError(f"{name} is {value:.12g}; it must be from {least:.12g} to {most:.12g}")
