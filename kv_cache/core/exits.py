"""The exit codes of every command (`docs/reference/exit-codes.md`)."""

from enum import IntEnum


class Exit(IntEnum):
    """What a command's end means to what started it."""

    DONE = 0
    EARLY = 1  # it ended early, or something that was asked for is missing
    REFUSED = 2  # bad input: nothing was begun
    NO_ANSWER = 3  # a device did not answer, and was not waited for any longer
    GATE = 4  # a condition that the user set on the result does not hold
    SIGINT = 130
    SIGTERM = 143  # and SIGHUP
