"""Looks at the machine for a result's passport: what could make the number untrue.

One module a question: a thin reader and pure functions that understand what was read. A probe
never breaks a run: what the machine does not say is None. It only looks; what the finding
means is decided elsewhere.
"""
