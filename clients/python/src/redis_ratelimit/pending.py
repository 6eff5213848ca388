"""Coroutines of asyncio that must be awaited before they are used as a condition."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Pending(Coroutine[Any, Any, T]):
    """Coroutine without a truth value, so that `if limiter.take(...)` without `await` fails."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __bool__(self) -> NoReturn:
        self._coroutine.close()
        raise TypeError(
            "this call decides nothing before it is awaited: if await limiter.take(...)"
        )


def pending(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Pending[T]]:
    """Decorates a coroutine function whose result is a condition."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        return Pending(function(*args, **kwargs))

    return called
