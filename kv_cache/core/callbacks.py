"""The callback of a caller that needs none."""


def ignore(*_: object) -> None:
    """Do nothing."""
