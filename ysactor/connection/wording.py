"""What a statement does, as far as its words tell."""

from __future__ import annotations

import re

_ROLE = re.compile(
    r"\bset\s+(session\s+)?(role|authorization)\b|\bset_config\s*\(\s*'(role|session_authorization)'", re.IGNORECASE
)
_COMMIT = re.compile(r"\s*(commit|end)\b", re.IGNORECASE)


def changes_role(query: str) -> bool:
    """Whether it makes the session act as somebody else."""
    return _ROLE.search(query) is not None


def commits(query: str) -> bool:
    """Whether it is a COMMIT, by its first word."""
    return _COMMIT.match(query) is not None
