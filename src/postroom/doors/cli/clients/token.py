"""The token that one client has of its own: made once, kept where only its user can read it, revoked with its last use."""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroom.address import data_folder
from postroom.errors import Conflict, Forbidden, Misconfigured, NotFound, PostroomError, Unauthenticated

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon, Unreachable

FOLDER: Final = "clients"
TRIES: Final = 8


class ClientToken:
    """A client's token: its secret in CLIENT.token, for `postroom mcp --token-file`, and beside it what is known of it.

    record: where that is kept, CLIENT.json by default. With `readable` the record has the secret too.
    """

    def __init__(
        self,
        folder: Path,
        client: str,
        *,
        speaks_as: Sequence[str] = (),
        record: Path | None = None,
        readable: bool = False,
    ) -> None:
        self.path = folder / FOLDER / f"{client}.token"
        self.record = record or folder / FOLDER / f"{client}.json"
        self._folder = folder
        self._client = client
        self._speaks_as = list(speaks_as)
        self._readable = readable
        self._made: str | None = None
        self._before: dict[Path, bytes | None] = {}

    def secret(self) -> str | None:
        """The secret that is kept, None for none. Raises Misconfigured."""
        raw = _contents(self.path)
        if raw is not None:
            with suppress(UnicodeDecodeError):
                return raw.decode("ascii").strip() or None
        kept = self._kept().get("token")
        return kept if isinstance(kept, str) and kept.isascii() else None

    def name_at(self, url: str) -> str | None:
        """What the daemon of this address calls it, None when it is not of that daemon. Raises Misconfigured."""
        kept = self._kept()
        name = kept.get("name")
        return name if isinstance(name, str) and name and kept.get("url") == url else None

    def users(self) -> list[str]:
        """The files that are known to use it."""
        used = self._kept().get("used_by")
        return [one for one in used if isinstance(one, str)] if isinstance(used, list) else []

    def keep(self, daemon: Daemon, users: Sequence[Path]) -> str:
        """A token that the daemon knows, the one that is there or a new one -> kept, with these files as its users.

        Gives what came of it, in a line, with the one that a new one takes the place of, where that is good still. Raises
        Forbidden when that takes another token, Unreachable, Misconfigured; nothing is left half done.
        """
        kept = dict(self._kept())
        secret = self.secret()
        used = list(dict.fromkeys([*self.users(), *map(str, users)]))
        self._before = {path: _contents(path) for path in (self.path, self.record)}
        try:
            if secret is not None and self._works(daemon, secret):
                said = f"token: {self.path} is up to date"
            else:
                made, before = self._make(daemon), kept.get("token_id")
                secret, self._made = str(made["secret"]), str(made["token"]["id"])
                kept = {"url": str(daemon.address), "token_id": self._made, "name": made["token"]["name"]}
                speaks = f", which speaks as {', '.join(self._speaks_as)} too," if self._speaks_as else ""
                said = f"token: {made['token']['name']}{speaks} is in {self.path}" + self._still_good(daemon, before)
            kept["used_by"] = used
            if self._readable:
                kept["token"] = secret
            self._write(self.path, secret.encode("ascii") + b"\n")
            self._write(self.record, json.dumps(kept).encode() + b"\n")
        except BaseException:
            self.undo(daemon)
            raise
        return said

    def undo(self, daemon: Daemon) -> None:
        """What `keep` did -> as it was before: a token that it made is revoked, the files are put back."""
        from postroom.doors.cli.connection import Unreachable

        if self._made is not None:
            with suppress(PostroomError, Unreachable):
                daemon.ask("POST", f"/v1/tokens/{self._made}/revoke", {})
            self._made = None
        for path, before in self._before.items():
            with suppress(PostroomError, OSError):
                if before is None:
                    path.unlink(missing_ok=True)
                elif _contents(path) != before:
                    self._write(path, before)

    def leave(
        self, daemon: Daemon, users: Sequence[Path], note: Callable[[str], None], *, write: bool
    ) -> tuple[str, PostroomError | Unreachable | None]:
        """In use by these files -> no longer; the token of nobody is revoked and its files removed.

        Gives what came of it, or without `write` what would, in a line; and why it was not revoked, where it was not.
        """
        from postroom.doors.cli.connection import Unreachable, segment

        kept = dict(self._kept())
        if not kept and _contents(self.path) is None:
            return f"token: there is none at {self.path}", None
        gone = set(map(str, users))
        left = [one for one in self.users() if one not in gone and os.path.exists(one)]
        if left:
            if write:
                self._write(self.record, json.dumps({**kept, "used_by": left}).encode() + b"\n")
            return f"token: {self.path} stays, since {', '.join(left)} use{'s' if len(left) == 1 else ''} it", None
        if not write:
            return f"token: {self.path} would be revoked and removed", None
        said, fault = "revoked and removed", None
        id_ = kept.get("token_id")
        try:
            daemon.ask("POST", f"/v1/tokens/{segment(str(id_))}/revoke", {})
        except (Unreachable, PostroomError) as error:
            said = "removed"
            note(f"the token {id_} was not revoked: {error}")
            if not isinstance(error, NotFound):
                fault = error
                note(f"it is good still; revoke it with: {self._revoking(id_)}")
        for path in (self.path, self.record):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise Misconfigured(f"{path} cannot be removed: {error.strerror}", field="token") from None
        return f"token: {said} {self.path}", fault

    def _still_good(self, daemon: Daemon, id_: object) -> str:
        """What is to be said of a token that another one took the place of; "" for one that opens nothing any more."""
        from postroom.doors.cli.connection import Unreachable

        with suppress(PostroomError, Unreachable):
            for one in daemon.ask("GET", "/v1/tokens")["tokens"] if isinstance(id_, str) else ():
                if one["id"] == id_ and one["revoked_at"] is None:
                    return f"; the one before it, {one['name']}, is good still: revoke it with {self._revoking(id_)}"
        return ""

    def _revoking(self, id_: object) -> str:
        elsewhere = self._folder != data_folder(None, os.environ)
        return f"postroom token revoke {id_}" + (f" --data {shlex.quote(str(self._folder))}" if elsewhere else "")

    def _make(self, daemon: Daemon) -> dict[str, Any]:
        from postroom.doors.cli.connection import Unreachable

        for left in reversed(range(TRIES)):
            name = f"{self._client}-{secrets.token_hex(2)}"
            body: dict[str, Any] = {"name": name, "role": "agent", "speaks_as": self._speaks_as or [_own(name)]}
            try:
                return daemon.ask("POST", "/v1/tokens", body)
            except Conflict:  # somebody has the name
                if not left:
                    raise
            except Unreachable as error:
                if error.sent:
                    raise Unreachable(
                        error.message,
                        f"The token {name} may have been made all the same; nothing else was. Once the daemon answers, "
                        f"its id is in `postroom token list`, and `{self._revoking('ID')}` takes it away.",
                    ) from None
                raise
            except (Forbidden, Unauthenticated) as error:
                raise Forbidden(
                    f"making a token for {self._client} takes an admin: {error.message}",
                    field="token",
                    hint="Run this where the data folder's admin-token can be read, or with an admin's POSTROOM_TOKEN.",
                ) from None
        raise AssertionError("unreachable")

    def _works(self, daemon: Daemon, secret: str) -> bool:
        """Whether the daemon knows the token, and it may speak as it has to."""
        name = self._kept().get("name")
        glob = self._speaks_as[0] if self._speaks_as else _own(name) if isinstance(name, str) else None
        query = {"limit": 1} if glob is None else {"for": glob.replace("*", "setup"), "limit": 1}
        try:
            daemon.under(secret).ask("GET", "/v1/inbox", query=query)
        except (Forbidden, Unauthenticated):
            return False
        return True

    def _kept(self) -> Mapping[str, Any]:
        raw = _contents(self.record)
        if raw is None:
            return {}
        try:
            kept = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Misconfigured(f"{self.record} cannot be read: {error}", field="token") from None
        if not isinstance(kept, dict):
            raise Misconfigured(f"{self.record} holds no object; remove it, then run this again", field="token")
        return kept

    def _write(self, path: Path, content: bytes) -> None:
        from postroom.doors.cli.settings_file import unwritable, write_private

        if _contents(path) != content:
            write_private(path, content)
            return
        try:
            path.chmod(0o600)
        except OSError as error:
            raise unwritable(path, error, "token") from None


def _own(name: str) -> str:
    """What the sessions under a token go by, each by a name of its own that begins with the token's."""
    return f"{name}-*"


def _contents(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}", field="token") from None
