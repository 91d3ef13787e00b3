"""The seat of `postroom mcp --channel`: what the agent behind it goes by, and what rings it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from postroom.doors.cli.asking import usage
from postroom.doors.cli.table import note
from postroom.errors import Invalid, Unavailable
from postroom.limits import check_name, check_queue
from postroom.postage import check_line

_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST: Final = 60
"""With room for a number: further sessions of a folder are told apart by one."""


def seat_of(
    *,
    name: str | None,
    agent: str | None,
    queues: Sequence[str],
    channels: Sequence[str],
    repositories: Sequence[str],
    no_repository: bool,
    no_rings: bool,
    ack: str | None,
) -> dict[str, Any]:
    """What a channel's endpoint is attached with; the folder says what is left out. Raises BadParameter by option."""
    if no_repository and repositories:
        raise usage("--repo and --no-repo exclude each other", "--no-repo")
    folder = Path.cwd()
    slug = None if repositories and name is not None else _slug(folder)
    named = name or agent or os.environ.get("POSTROOM_AGENT") or None
    try:
        if named is not None:
            check_name(named, "--name" if name is not None else "--agent" if agent is not None else "POSTROOM_AGENT")
        for queue in queues:
            check_queue(queue, "--queue")
        for channel in channels:
            check_queue(channel, "--subscribe")
        for repository in repositories:
            check_line(repository, "--repo")
    except Invalid as error:
        raise usage(error.message, error.field) from None
    works_on = [] if no_repository else list(repositories) or ([slug] if slug is not None else [])
    return {
        "name": named or _plain(slug or folder.name),
        "derived": named is None,
        "queues": tuple(queues),
        "channels": tuple(channels),
        "repositories": tuple(works_on),
        "rings": not no_rings,
        "ack_mode": ack,
        "directory": str(folder),
        "host": platform.node() or None,
    }


def _slug(folder: Path) -> str | None:
    from postroom.services.gita import GitaRegistry, registry_file

    try:
        return GitaRegistry(registry_file(os.environ, Path.home())).slug_of(folder)
    except Unavailable as error:
        note(f"note: {error.message}")
        return None


def _plain(word: str) -> str:
    return _STRANGE.sub("-", word).strip("-")[:_MOST] or "agent"
