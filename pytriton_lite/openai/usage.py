"""Tokens in and out of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """Tokens of prompts, and tokens written, as the model has counted them."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total(self) -> int:
        """All tokens."""
        return self.prompt_tokens + self.completion_tokens

    def as_json(self) -> dict[str, int]:
        """As chat and completions say it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total,
        }
