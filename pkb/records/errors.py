"""Errors that leave the package, named by whose fault they are.

PkbError
+-- UsageError      the user's fault: bad id, missing file, impossible request. Exit code 2.
+-- HarnessError    our fault or the machine's: never counted against a candidate. Exit code 3.

A candidate's fault is not an exception: it is the status of a Verdict.
"""

from __future__ import annotations


class PkbError(Exception):
    """Base of every error that pkb raises on purpose."""


class UsageError(PkbError):
    """A request that cannot be met; the message says what, where, expected, got and the next step."""


class HarnessError(PkbError):
    """The judge itself failed; the run can be repeated and must not be scored."""
