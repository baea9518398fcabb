"""What records say beside what the engines themselves have counted, model by model.

A host counts from its start, and is told of for 15 minutes after its end. So each host that is told
of is compared with the records that name it. An engine may well have computed more than was
recorded (requests that run, answers that were cut): the share is the capture rate. It can't have
computed less; of a host that was killed, the last count that was heard may be too old to tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.store.sql import Connection

_SERIES = re.compile(r"(\w+)\{([^}]*)\} ([0-9.e+]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UP = "bulkhead_host_up"  # told of hosts that are there
_COUNTED = {
    "engine_prompt_tokens_total": "input",
    "engine_cached_tokens_total": "cached_input",
    "engine_output_tokens_total": "output",
}


@dataclass(slots=True)
class Tokens:
    """Counts of tokens; cached input is part of the input."""

    input: int = 0
    cached_input: int = 0
    output: int = 0

    def add(self, other: Tokens) -> None:
        """Add all three."""
        self.input += other.input
        self.cached_input += other.cached_input
        self.output += other.output


@dataclass(slots=True)
class Host:
    """What one host has counted."""

    model: str
    is_up: bool = False
    counted: Tokens = field(default_factory=Tokens)


@dataclass(slots=True)
class ModelCheck:
    """One model's hosts: what they counted, what is recorded of them, and what of it is billed."""

    model: str
    hosts: int = 0
    counted: Tokens = field(default_factory=Tokens)
    recorded: Tokens = field(default_factory=Tokens)
    billed: Tokens = field(default_factory=Tokens)
    faults: list[str] = field(default_factory=list)  # what can't be, in words

    @property
    def capture(self) -> float | None:
        """The share of the tokens that engines have computed that is billed."""
        counted = self.counted.input + self.counted.output
        return (self.billed.input + self.billed.output) / counted if counted else None


def hosts_of(metrics: str) -> dict[str, Host]:
    """Each host's model and counters, of the text that Prometheus reads."""
    found: dict[str, Host] = {}
    for line in metrics.splitlines():
        shape = _SERIES.fullmatch(line)
        if shape is None or shape[1] not in (_UP, *_COUNTED):
            continue
        labels = dict(_LABEL.findall(shape[2]))
        host = found.setdefault(labels["host"], Host(labels["model"]))
        number = int(float(shape[3]))
        if shape[1] == _UP:
            host.is_up = bool(number)
        else:
            setattr(host.counted, _COUNTED[shape[1]], number)
    return found


def recorded_by_host(db: Connection) -> dict[str, tuple[Tokens, Tokens]]:
    """What the records that name a host say: all of them, and those that are billed."""
    return {
        host: (Tokens(*map(int, sums[:3])), Tokens(*map(int, sums[3:])))
        for host, *sums in db.execute(_RECORDED).fetchall()
    }


def check(
    hosts: Mapping[str, Host], recorded: Mapping[str, tuple[Tokens, Tokens]]
) -> Iterable[ModelCheck]:
    """By model. `recorded` is to be read before `hosts`, which go on counting."""
    found: dict[str, ModelCheck] = {}
    for name, host in sorted(hosts.items()):
        one = found.setdefault(host.model, ModelCheck(host.model))
        every, billed = recorded.get(name, (Tokens(), Tokens()))
        one.hosts += 1
        one.counted.add(host.counted)
        one.recorded.add(every)
        one.billed.add(billed)
        if host.is_up:
            one.faults += [f"{name}: {fault}" for fault in _faults(host.counted, every)]
    return found.values()


def _faults(counted: Tokens, recorded: Tokens) -> Iterator[str]:
    """What one host's records can't say."""
    for name in ("input", "cached_input", "output"):
        told, found = getattr(recorded, name), getattr(counted, name)
        if told > found:
            yield f"{told} tokens of {name} recorded, {found} counted"
    if recorded.input == counted.input and recorded.cached_input < counted.cached_input:
        yield (
            f"{recorded.cached_input} tokens of cached_input recorded, "
            f"{counted.cached_input} reused"
        )


_RECORDED = """
SELECT host_id, coalesce(sum(input_tokens), 0), coalesce(sum(cached_input_tokens), 0),
  coalesce(sum(output_tokens), 0), coalesce(sum(input_tokens * billable), 0),
  coalesce(sum(cached_input_tokens * billable), 0), coalesce(sum(output_tokens * billable), 0)
FROM usage_record
WHERE host_id IS NOT NULL AND state = 'settled' AND kind = 'request'
GROUP BY host_id
"""
