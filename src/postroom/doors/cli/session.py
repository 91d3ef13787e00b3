"""An opencode session as a place that takes messages, and the token under which its agent claims and sends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroom.address import data_folder
from postroom.doors.cli.asking import usage

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

PREFIX: Final = "ses_"


@dataclass(frozen=True, slots=True)
class Session:
    """A session by its id."""

    id: str

    @classmethod
    def named(cls, id_: str) -> Session:
        """The session of this id. Raises BadParameter for what is none."""
        if not id_.startswith(PREFIX) or len(id_) == len(PREFIX):
            raise usage(f"{id_[:64]!r} is no session; expected ses_..., as in $OPENCODE_SESSION_ID", "--session")
        return cls(id_)

    @property
    def address(self) -> Mapping[str, Any]:
        """Where it is, in its carrier's words."""
        return {"session": self.id}

    def owner(self, daemon: Daemon, data: Path | None) -> tuple[Daemon, str | None]:
        """The daemon asked with opencode's own token, and the name to go by; as it was, and None, where there is none.

        Under its own token the session's claims answer its rings. The token's name goes to the first session that is
        attached under it: to a name that two have, nobody could send.
        """
        from postroom.doors.cli.clients.installing import client_token
        from postroom.doors.cli.clients.opencode import Opencode

        if os.environ.get("POSTROOM_TOKEN"):
            return daemon, None
        token = client_token(Opencode(), data_folder(data, os.environ))
        secret, name = token.secret(), token.name_at(str(daemon.address))
        if secret is None or name is None:
            return daemon, None
        found = daemon.ask("GET", "/v1/endpoints", query={"name": name, "live": "true"})["endpoints"]
        taken = any(one["address"] != self.address for one in found)
        return daemon.under(secret), None if taken else name
