"""What a statement does, as far as its words tell."""

from __future__ import annotations

import re

_ROLE = re.compile(
    r"\bset\s+(session\s+)?(role|authorization)\b|\bset_config\s*\(\s*'(role|session_authorization)'", re.IGNORECASE
)
_COMMIT = re.compile(r"\s*(commit|end)\b", re.IGNORECASE)
_END = re.compile(
    r"(?:^|;)\s*(?:commit|end|rollback|abort)(?:\s+(?:work|transaction))?(?:\s+and\s+(?:no\s+)?chain)?\s*(?:;|$)",
    re.IGNORECASE,
)
_BODY = re.compile(r"\$|\batomic\b", re.IGNORECASE)
_WORDS = re.compile(r"\b(?:set|set_config|commit|end|rollback|abort)\b", re.IGNORECASE)


def is_ordinary(query: str) -> bool:
    """Whether it has none of the words that the functions below look for: one look instead of three."""
    return _WORDS.search(query) is None


def changes_role(query: str) -> bool:
    """Whether it makes the session act as somebody else."""
    return _ROLE.search(query) is not None


def ends_transaction(query: str) -> bool:
    """Whether a COMMIT or ROLLBACK is among its statements. Where it holds a function's body nothing is looked for."""
    return _END.search(query) is not None and _BODY.search(query) is None


def commits(query: str) -> bool:
    """Whether it is a COMMIT, by its first word."""
    return _COMMIT.match(query) is not None
