"""Mentions: the accounts that a comment in Markdown calls with an at sign."""

from __future__ import annotations

import re

MAX_MENTIONS = 20
MAX_SCANNED = 65_536

_MENTION = re.compile(r"(?<![\w@/.`+-])@([A-Za-z0-9][A-Za-z0-9-]{0,38}(?:/[A-Za-z0-9][A-Za-z0-9_.-]{0,99})?)")


_WIDE = re.compile(r"(?<![\w@/.`+-])@([A-Za-z0-9_][A-Za-z0-9_.-]{0,254}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}){0,20})")


def mentions(markdown: str, *, wide: bool = False) -> tuple[str, ...]:
    """The accounts and teams called, in lower case and in order; code and quoted lines call nobody.

    wide: names may also hold dots and underscores, and groups may nest, as on GitLab, Gitea and Forgejo.
    """
    text = markdown[:MAX_SCANNED]
    # The pieces at odd places stand between the marks: code.
    text = " ".join(text.split("```")[::2])
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(">"))
    text = " ".join(text.split("`")[::2])
    found: dict[str, None] = {}
    for match in (_WIDE if wide else _MENTION).finditer(text):
        found.setdefault(match.group(1).rstrip("-.").lower())
        if len(found) == MAX_MENTIONS:
            break
    return tuple(found)
