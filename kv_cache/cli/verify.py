"""`kv-cache.py verify RESULT`: is a result as its run left it, and what is it worth?"""

import sys
from collections.abc import Sequence

from kv_cache.app.verify import VerifyOptions, verify
from kv_cache.cli.command import Command
from kv_cache.cli.printing import print_json
from kv_cache.core.exits import Exit
from kv_cache.core.text import printable
from kv_cache.result.verification import LONGEST_PATH, ChainVerification
from kv_cache.view.terminal import terminal
from kv_cache.view.verification import verification_view

COMMAND = Command(
    name="verify",
    options=VerifyOptions,
    about="""\
    Check a result offline: was it changed, do its numbers follow from each other, and what do they
    prove?
    """,
    epilog="""\
    What is checked:
      chain    the hashes of configuration, environment, records, evidence, verdict, measurements
               and the reference's keys, each covering all before it: `changed` names what differs
      numbers  the whole result is derived again from what it says was counted (operations,
               requests, reuse, windows, kernel counters, evidence) and compared, value by value:
               `disagrees`. In a run's directory also ledger and histograms from the records, and
               config.yaml and environment.json against what the result holds. Of several ranks,
               each one's result like this, and the merge of them done again
      verdict  valid, suspect or invalid, with the rule and the numbers behind each reason, what
               could not be judged, and thresholds that are not at their default

    What it cannot find:
      The chain is not a signature: anybody who may write the file can rewrite all of it, hashes
      included. What they invent must still agree with itself in everything above. To know that a
      result is the one that you saw, note its fingerprint elsewhere and give it to --fingerprint.
      Root on the machine of the run can have lied to the run itself: to its kernel's counters, its
      clocks, its device.

    exit code: 0 intact, whatever the verdict; 2 something was changed or contradicts itself, or
    RESULT is not a result of this program. Rules and thresholds: docs/reference/passport.md
    """,
)


def main(argv: Sequence[str]) -> int:
    """Verify one result; the exit code. UsageError is the caller's to print."""
    options = COMMAND.parse(argv)
    verification = verify(options)
    if options.json:
        print_json(verification.to_json())
    else:
        print(terminal(verification_view(verification)))
    if verification.intact:
        return Exit.DONE
    if not isinstance(verification, ChainVerification):
        sys.stdout.flush()
        print(
            f"kv-cache: {printable(options.result, longest=LONGEST_PATH)} is not as its run left "
            "it; run again, or get the original",
            file=sys.stderr,
        )
    return Exit.REFUSED
