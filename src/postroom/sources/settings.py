"""Sources from the settings: the `[[source]]` tables of the TOML file, checked whole before anything listens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from postroom.errors import Invalid, Misconfigured
from postroom.limits import check_queue
from postroom.sources.options import Options
from postroom.sources.rule_tables import rules_of
from postroom.sources.scheme import QueryToken, Secret, Unsigned
from postroom.sources.source import MAX_BYTES, Sender, Source
from postroom.sources.standard import MIN_KEY
from postroom.sources.table import SENDERS

MIN_SECRET_BYTES: Final = 16
MAX_SECRET_FILE_BYTES: Final = 65_536
LEAST_MAX_BYTES: Final = 1024
MOST_MAX_BYTES: Final = 32 * 1024 * 1024

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_SIGNATURE = re.compile(r"v[0-9]+a?[,=]|sha(1|256|384|512)=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources by name, and what is unwise about them though it works."""

    by_name: Mapping[str, Source]
    warnings: tuple[str, ...] = ()

    def get(self, name: str) -> Source | None:
        """The source of this name."""
        return self.by_name.get(name)


def build_sources(tables: object, environment: Mapping[str, str], folder: Path, *, exposed: bool = False) -> Sources:
    """Parsed `[[source]]` tables -> sources. Raises Misconfigured naming the source, the key and what was expected.

    folder: where the settings file lies; a relative `secrets_file` starts there. exposed: whether the hooks have a port
    of their own, which is there to be reached from outside.
    """
    if not isinstance(tables, Sequence) or isinstance(tables, str):
        raise Misconfigured("source: expected [[source]] tables", field="source")
    made: dict[str, Source] = {}
    warnings: list[str] = []
    for index, table in enumerate(tables):
        if not isinstance(table, Mapping):
            raise Misconfigured(f"source[{index}]: expected a [[source]] table", field=f"source[{index}]")
        source = _build(index, table, environment, folder, warnings, exposed)
        if source.name in made:
            raise Misconfigured(f'source "{source.name}": name: there are two of this name', field="source.name")
        made[source.name] = source
    return Sources(MappingProxyType(made), tuple(warnings))


def _build(
    index: int,
    table: Mapping[str, object],
    environment: Mapping[str, str],
    folder: Path,
    warnings: list[str],
    exposed: bool,
) -> Source:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Misconfigured(
            f"source[{index}]: name: expected lower-case letters, digits and ._- (it is the end of /hooks/NAME), "
            f"got {name!r:.80}",
            field=f"source[{index}].name",
        )
    options = Options(name, table)
    options.has("name")
    provider = options.choice("provider", tuple(SENDERS))
    if provider is None:
        raise options.wrong("provider", f"expected one of {', '.join(SENDERS)}")
    sender = SENDERS[provider](options)
    insecure = options.flag("insecure")
    secrets = tuple(
        _keyed(options, sender, key, secret, warnings)
        for key, secret in _secrets(options, environment, folder, warnings)
    )
    if insecure:
        if secrets:
            raise options.wrong("insecure", "expected no secrets beside insecure = true: take one of the two away")
        sender = replace(sender, scheme=Unsigned())
        warnings.append(f'source "{name}" is insecure: whoever reaches its address can make work')
    elif not secrets:
        raise options.wrong(
            "secrets_env", "expected a secret (secrets_env, secrets_file or secrets), or insecure = true"
        )
    queue = _queue(options)
    source = Source(
        name=name,
        sender=sender,
        secrets=secrets,
        queue=queue,
        rules=rules_of(options, table, provider, queue),
        ignore_authors=options.texts("ignore_authors"),
        insecure=insecure,
        local=_local(options, sender, exposed),
        max_bytes=options.number("max_bytes", LEAST_MAX_BYTES, MOST_MAX_BYTES, MAX_BYTES),
    )
    options.refuse_rest()
    return source


def _local(options: Options, sender: Sender, exposed: bool) -> bool:
    """Whether only this machine's programs may deliver: nothing, or an address that others log, is all the proof."""
    public = options.flag("public")
    match sender.scheme:
        case Unsigned():
            key, why = "insecure", "whoever reaches that port could make work"
        case QueryToken():
            key, why = "query_token", "the secret would stand in the logs of whatever lies before that port"
        case _:
            if public:
                raise options.wrong(
                    "public", "expected it only beside insecure or query_token: others may be reached anyway"
                )
            return False
    if exposed and not public:
        raise options.wrong(key, f"expected public = true beside it, or no hooks_port: {why}")
    return not public


def _queue(options: Options) -> str | None:
    queue = options.text("queue")
    if queue is None:
        return None
    try:
        return check_queue(queue)
    except Invalid as refused:
        raise options.wrong("queue", refused.message) from None


def _secrets(
    options: Options, environment: Mapping[str, str], folder: Path, warnings: list[str]
) -> list[tuple[str, Secret]]:
    """The secrets in order, each with the key of the settings that names it."""
    found: list[tuple[str, Secret]] = []
    for variable in options.texts("secrets_env"):
        if not _VARIABLE.fullmatch(variable):
            raise options.wrong("secrets_env", "expected the name of an environment variable, not the secret itself")
        if variable not in environment:
            raise options.wrong("secrets_env", f"the environment has no {variable}; set it to the secret")
        found.append(("secrets_env", _secret(options, "secrets_env", environment[variable], variable)))
    path = options.text("secrets_file")
    if path is not None:
        lines = _lines(options, folder / Path(path).expanduser(), warnings)
        for number, line in lines:
            if line:
                found.append(("secrets_file", _secret(options, "secrets_file", line, f"{Path(path).name}:{number}")))
    for index, value in enumerate(options.texts("secrets", shown=False)):
        found.append(("secrets", _secret(options, "secrets", value, f"secrets[{index}]")))
    return found


def _keyed(options: Options, sender: Sender, key: str, secret: Secret, warnings: list[str]) -> Secret:
    """The secret with the bytes that sign; warned of when those are too few to be safe."""
    if sender.key is not None:
        try:
            secret = replace(secret, key=sender.key(secret.value.decode()))
        except Invalid as refused:
            raise options.wrong(key, f"{secret.label} {refused.message}") from None
    least = MIN_SECRET_BYTES if secret.key == secret.value else MIN_KEY
    if len(secret.key) < least:
        warnings.append(
            f'source "{options.source}": the secret {secret.label} is short; take {least} random bytes or more'
        )
    return secret


def _lines(options: Options, path: Path, warnings: list[str]) -> list[tuple[int, str]]:
    """The lines of a secrets file with their numbers; one secret a line."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SECRET_FILE_BYTES + 1)
        mode = path.stat().st_mode
    except OSError as error:
        raise options.wrong("secrets_file", f"cannot read {path}: {error.strerror}") from None
    if len(raw) > MAX_SECRET_FILE_BYTES:
        raise options.wrong("secrets_file", f"{path} is over {MAX_SECRET_FILE_BYTES} bytes; expected one secret a line")
    try:
        lines = list(enumerate(raw.decode("utf-8-sig").replace("\r\n", "\n").split("\n"), 1))
    except UnicodeDecodeError:
        raise options.wrong("secrets_file", f"{path} is not UTF-8 text") from None
    if not any(line for _, line in lines):
        raise options.wrong("secrets_file", f"{path} is empty; expected one secret a line")
    if mode & 0o077:
        warnings.append(f'source "{options.source}": {path} can be read by others; chmod 600 it')
    return lines


def _secret(options: Options, key: str, value: str, label: str) -> Secret:
    """The secret, when it can be one; errors name its label and never its value."""
    if not value:
        raise options.wrong(key, f"{label} is empty; expected the secret")
    if value != value.strip():
        raise options.wrong(key, f"{label} has blanks or a line end around it; expected the secret alone")
    if _CONTROL.search(value):
        raise options.wrong(key, f"{label} holds control characters; expected one secret, on one line")
    if _SIGNATURE.match(value):
        raise options.wrong(
            key, f"{label} begins like a signature (v1, or sha256=); expected the secret, without such a prefix"
        )
    return Secret(value.encode(), label)
