"""Putting a function around a method of somebody else's class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


def around(owner: type, name: str) -> Callable[[Method], Method]:
    """Decorate `act(inner, self, *args, **kwargs)`: it runs in the method's place, from now on.

    Raises AttributeError if there is no such method: then this isn't the version it was made for.
    """

    def put(act: Method) -> Method:
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return act(inner, self, *args, **kwargs)

        setattr(owner, name, method)
        return act

    return put
