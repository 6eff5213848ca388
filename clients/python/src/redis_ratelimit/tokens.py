"""Tokens of a model: what a request can cost, and what an answer says that it used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

from redis_ratelimit.quantities import MOST

# What the body of a request says to the model.
_PROMPTS = ("messages", "prompt", "input", "system", "instructions", "tools", "contents")
_MOST_TOKENS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

# About what tokenizers make of text, which is all that an estimate needs.
_CHARACTERS_A_TOKEN = 4

# How APIs call what was used.
_USAGE = {
    "prompt_tokens": "input",
    "input_tokens": "input",
    "promptTokenCount": "input",
    "completion_tokens": "output",
    "output_tokens": "output",
    "candidatesTokenCount": "output",
    "total_tokens": "total",
    "totalTokenCount": "total",
}

# In text the quotes would be escaped.
_USAGE_IN_BYTES = re.compile(rb'"(%s)"\s*:\s*(\d+)' % "|".join(_USAGE).encode())
_LONGEST = 64


def estimate(data: Mapping[str, Any], default_output: int) -> int:
    """How many tokens a request can cost: about those of its prompt, and as many as the model may
    answer with: if the request does not say how many, `default_output`. Of several numbers the
    largest counts, as providers differ in which they go by.
    """
    answers = _count(data.get("n")) or 1
    told = (_count(data.get(name)) for name in _MOST_TOKENS)
    output = max((count for count in told if count is not None), default=default_output)
    return min(max(prompt_tokens(data) + output * answers, 1), MOST)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def prompt_tokens(data: Mapping[str, Any]) -> int:
    characters = sum(_length(data.get(name)) for name in _PROMPTS)
    return ceil(characters / _CHARACTERS_A_TOKEN)


def _length(value: object) -> int:
    if isinstance(value, str):
        # An image is no text.
        return 0 if value.startswith("data:") else len(value)
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_length, value))
    return 0


class Tokens:
    """What a model says that it used, in an answer or all over a stream."""

    def __init__(self, prompt: int) -> None:
        self._prompt = prompt
        self._told: dict[str, int] = {}
        self._characters = 0
        self._tail = b""

    def see(self, part: Any) -> None:
        """An answer, or a chunk of one."""
        if isinstance(part, (bytes, str)):
            self._see_bytes(part.encode() if isinstance(part, str) else part)
            return
        for of in (part, _get(part, "response"), _get(part, "message")):
            usage = _get(of, "usage")
            for name, kind in _USAGE.items():
                self._see(kind, _get(usage, name))
        for choice in _get(part, "choices") or ():
            text = _get(_get(choice, "delta") or choice, "content") or _get(choice, "text")
            self._characters += len(text) if isinstance(text, str) else 0

    @property
    def prompt(self) -> int:
        """About the tokens of the prompt."""
        return self._prompt

    def _see_bytes(self, part: bytes) -> None:
        text = self._tail + part
        for name, number in _USAGE_IN_BYTES.findall(text):
            self._see(_USAGE[name.decode()], int(number))
        # A chunk may end in the middle of a number, which then is seen whole in the next.
        self._tail = text[-_LONGEST:]

    def _see(self, kind: str, number: object) -> None:
        # Streams tell it as it grows.
        if isinstance(number, int):
            self._told[kind] = max(self._told.get(kind, 0), number)

    @property
    def told(self) -> int | None:
        """None: the model has said nothing of it, or that it was nothing."""
        both = self._told.get("input", 0) + self._told.get("output", 0)
        return max(both, self._told.get("total", 0)) or None

    @property
    def guessed(self) -> int | None:
        """By the text that has come; None: none has."""
        if self._characters == 0:
            return None
        return self._prompt + ceil(self._characters / _CHARACTERS_A_TOKEN)


def _get(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)
