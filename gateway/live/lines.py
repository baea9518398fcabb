"""A request as one line for people, in colours where there are any. Pure."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from gateway.live.words import clean, cut, duration, tokens

FIGURES_WIDTH = 28
OTHER_WIDTH = 52  # columns of all that isn't a name
LEAST_NAMES, MOST_NAMES = (21, 7), (64, 32)  # columns of the model and the tenant
COLOURS = {"ok": "green", "canceled": "yellow", "error": "red"}


def request_line(event: dict[str, Any], width: int) -> Text:
    """Time, status, model or path, tenant, tokens, first token, duration; in `width` columns."""
    lost = f"  ({event['dropped']} before it were too many to show)" if event.get("dropped") else ""
    model_width, tenant_width = name_widths(width - len(lost))
    result = event.get("result", "")
    colour = COLOURS.get(result, "")
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(time_of_day(event) + " ", "dim")
    line.append(f"{mark(event)}{event.get('status') or '-':>3} ", f"bold {colour}")
    line.append(f"{cut(what(event), model_width):<{model_width}} ")
    line.append(f"{cut(event.get('tenant_name') or '-', tenant_width):<{tenant_width}} ", "cyan")
    line.append_text(measured(event, colour))
    line.append(lost, "dim")
    line.truncate(width)
    return line


def name_widths(width: int) -> tuple[int, int]:
    """Columns of the model and of the tenant, as far as there is room beside the rest."""
    room = width - OTHER_WIDTH
    model = max(LEAST_NAMES[0], min(MOST_NAMES[0], room - room // 3))
    tenant = max(LEAST_NAMES[1], min(MOST_NAMES[1], room - model))
    return model, tenant


def what(event: dict[str, Any]) -> str:
    """The model that was asked, or else the path."""
    if model := event.get("model"):
        return str(model)
    return clean(f"{event.get('method', '')} {event.get('path', '')}")


def mark(event: dict[str, Any]) -> str:
    """`!` where the status says that all was well, and what came after it failed."""
    return "!" if event.get("result") == "error" and (event.get("status") or 500) < 400 else " "


def trouble(event: dict[str, Any]) -> str:
    """What went wrong, in a word or two."""
    if event.get("result") == "canceled":
        return "client left"
    return str(event.get("code") or "")


def measured(event: dict[str, Any], colour: str) -> Text:
    """Tokens and the first of them, or what went wrong; and how long it took."""
    used = tokens(
        event.get("input_tokens"), event.get("cached_input_tokens"), event.get("output_tokens")
    )
    first = duration(event.get("ttft_ms"))
    took = f" {duration(event.get('duration_ms')):>7}"
    if fault := trouble(event):
        return Text.assemble((f"{cut(fault, FIGURES_WIDTH):<{FIGURES_WIDTH}}", colour), took)
    figures = f"{used:<16} {f'ttft {first}' if first else '':<11}"
    return Text(f"{figures:<{FIGURES_WIDTH}}{took}")


def time_of_day(event: dict[str, Any]) -> str:
    """The event's time of day, UTC: `12:03:04`."""
    return str(event.get("timestamp", ""))[11:19]
