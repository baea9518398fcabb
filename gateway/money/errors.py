"""What can't be done with the books; each message is a sentence for people."""

from __future__ import annotations


class MoneyError(Exception):
    """Base of the errors of this package that a person can mend."""
