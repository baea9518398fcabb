"""Budgets as they are told, the same to tenants and operators: amounts as exact decimal texts."""

from __future__ import annotations

from typing import Any

from gateway.budgets.rows import Account
from gateway.prices import format_nano

US_PER_S = 1_000_000


def view(account: Account) -> dict[str, Any]:
    """A budget in one of its windows; times in Unix seconds."""
    budget, window = account.budget, account.window
    return {
        "object": "budget",
        "id": budget.id,
        "tenant_id": budget.tenant_id,
        "scope": {"kind": budget.scope_kind, "id": budget.scope_id},
        "model": budget.model_id or None,
        "period": budget.period,
        "currency": budget.currency,
        "limit": format_nano(budget.limit_nano),
        "alerts": list(budget.alerts),
        "created_at": budget.created_at // US_PER_S,
        "archived_at": _seconds(budget.archived_at),
        "window": {
            "starts_at": window.starts_at // US_PER_S,
            "ends_at": _seconds(window.ends_at),
            "spent": format_nano(account.spent_nano),
            "held": format_nano(account.held_nano),
            "left": format_nano(max(account.left_nano, 0)),
        },
    }


def _seconds(at_us: int | None) -> int | None:
    return None if at_us is None else at_us // US_PER_S
