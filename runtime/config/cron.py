"""Cron expressions: five fields as in crontab(5), in UTC."""

from __future__ import annotations

import datetime

from cronsim import CronSim, CronSimError

FIELDS = 5
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
EXPECTED = 'five fields (minute, hour, day, month, weekday), such as "0 3 * * *"'


def fault(expression: str) -> str:
    """What is wrong with an expression, or nothing."""
    count = len(expression.split())
    if count != FIELDS:
        return f"expected {EXPECTED}, found {count}"
    try:
        CronSim(expression, EPOCH)
    except CronSimError as told:
        return f"expected {EXPECTED}; {str(told)[:1].lower()}{str(told)[1:]}"
    return ""
