"""How `postroom source list` and `postroom reload` show the sources to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroom.doors.cli.table import cell, note, short_time, table


def show_sources(answer: Mapping[str, Any]) -> None:
    """Print the sources, each with its address, its secrets and which of them proved the latest delivery."""

    def matched(source: Mapping[str, Any]) -> object:
        found = source["matched"]
        return None if found is None else f"{found['secret']} at {short_time(found['at'])}"

    table(
        ("name", "provider", "queue", "address", "up to", "secrets", "latest proof"),
        [
            (
                one["name"],
                one["provider"],
                one["queue"],
                "".join((*answer["addresses"][:1], one["path"])),
                _size(one["max_bytes"]),
                _secrets_shown(one),
                matched(one),
            )
            for one in answer["sources"]
        ],
    )
    for warning in answer["warnings"]:
        note(f"warning: {warning}")
    if not answer["sources"]:
        note("there is none yet: postroom source add github --provider github --queue inbox --preset github")


def _secrets_shown(source: Mapping[str, Any]) -> str:
    said = "insecure" if source["insecure"] else cell(source["secrets"])
    return f"{said}; this machine alone" if source["local"] else said


def _size(count: int) -> str:
    for unit, name in ((1024 * 1024, "MiB"), (1024, "KiB")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"
