"""Sources from the settings: what is refused names the source and the key, and no secret is ever shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroom.errors import Misconfigured
from postroom.sources.scheme import Hmac, Token, Unsigned
from postroom.sources.settings import build_sources
from tests.sources.signing import SECRET, accepted, github, github_headers, one

GOOD: dict[str, Any] = {"name": "ci", "provider": "generic", "secrets": [SECRET]}


def wrong(table: dict[str, Any], environment: dict[str, str] | None = None, folder: Path = Path()) -> Misconfigured:
    with pytest.raises(Misconfigured) as caught:
        build_sources([table], environment or {}, folder)
    return caught.value


def test_secrets_come_from_environment_file_and_table_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "hook-secrets"
    file.write_text("the first secret of the file\r\n\nthe second one of the file\n")
    file.chmod(0o600)
    source = one(
        {
            "name": "gh",
            "provider": "github",
            "secrets_env": ["NEW_SECRET", "OLD_SECRET"],
            "secrets_file": "hook-secrets",
            "secrets": "one in the table itself",
        },
        {"NEW_SECRET": "the new secret value", "OLD_SECRET": "the old secret value"},
        tmp_path,
    )
    labels = ["NEW_SECRET", "OLD_SECRET", "hook-secrets:1", "hook-secrets:3", "secrets[0]"]
    assert [secret.label for secret in source.secrets] == labels
    for secret in source.secrets:
        got = accepted(source, github_headers(b"{}", secret=secret.value.decode()), b"{}")
        assert got.verification == f"hmac-sha256:{secret.label}"


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"name": "No Name"}, "name", "lower-case"),
        ({"name": None}, "name", "lower-case"),
        ({"provider": "gihub"}, "provider", "github, gitlab"),
        ({"provider": None}, "provider", "expected a text"),
        ({"encodng": "hex"}, "encodng", "did you mean encoding?"),
        ({"zzz": 1}, "zzz", "unknown key; expected"),
        ({"secrets": []}, "secrets", "list of texts"),
        ({"secrets": [1]}, "secrets", "list of texts"),
        ({"secrets": [""]}, "secrets", "empty"),
        ({"secrets": ["padded secret value "]}, "secrets", "blanks"),
        ({"secrets": ["two\nlines"]}, "secrets", "control"),
        ({"secrets": ["v1,MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}, "secrets", "v1,"),
        ({"secrets": ["sha256=757107ea0eb2509fc211221c"]}, "secrets", "signature"),
        ({"secrets_env": ["NOT_THERE"]}, "secrets_env", "NOT_THERE"),
        ({"secrets_env": [SECRET]}, "secrets_env", "not the secret itself"),
        ({"secrets_env": ["EMPTY"]}, "secrets_env", "EMPTY is empty"),
        ({"secrets_file": "nowhere"}, "secrets_file", "cannot read"),
        ({"insecure": True}, "insecure", "no secrets"),
        ({"insecure": "yes"}, "insecure", "true or false"),
        ({"max_bytes": 1023}, "max_bytes", "from 1024 to 33554432"),
        ({"max_bytes": 2**25 + 1}, "max_bytes", "whole number"),
        ({"max_bytes": "5 MiB"}, "max_bytes", "whole number"),
        ({"max_bytes": True}, "max_bytes", "whole number"),
        ({"public": True}, "public", "beside insecure or query_token"),
        ({"public": 1}, "public", "true or false"),
        ({"queue": "No Queue"}, "queue", "queue name"),
        ({"preset": "github", "queue": "q"}, "preset", "is for github"),
        ({"preset": "nothing"}, "preset", "one of github"),
        ({"logins": ["bot"]}, "logins", "preset"),
        ({"ignore_authors": 3}, "ignore_authors", "list of texts"),
        ({"scheme": "rot13"}, "scheme", "hmac, bearer, token"),
        ({"scheme": "token"}, "header", "holds the token"),
        ({"scheme": "bearer", "algorithm": "sha256"}, "algorithm", "unknown key"),
        ({"header": "X Signature"}, "header", "name of a header"),
        ({"algorithm": "md5"}, "algorithm", "sha256, sha512"),
        ({"encoding": "base58"}, "encoding", "hex, base64"),
        ({"signed": "{timestamp}"}, "signed", "{body} once"),
        ({"signed": "{body}{body}"}, "signed", "{body} once"),
        ({"signed": "{body}.{nonce}"}, "signed", "{body} once"),
        ({"signed": "{body"}, "signed", "{body} once"),
        ({"signed": "{timestamp}.{body}"}, "timestamp_header", "header that holds"),
        ({"signed": "{id}.{body}"}, "id_header", "header that holds"),
        ({"tolerance_s": 60}, "tolerance_s", "not signed proves nothing"),
        ({"timestamp_header": "X-Time"}, "timestamp_header", "not signed proves nothing"),
        ({"signed": "{timestamp}{body}", "timestamp_header": "X-T", "tolerance_s": 0}, "tolerance_s", "from 1"),
        ({"signed": "{timestamp}{body}", "timestamp_header": "X-T", "tolerance_s": True}, "tolerance_s", "from 1"),
    ],
)
def test_a_wrong_table_is_refused_by_key(change: dict[str, Any], key: str, says: str) -> None:
    error = wrong({**GOOD, **change}, {"EMPTY": ""})
    assert error.field is not None
    assert error.field.endswith(key)
    assert key in error.message
    assert says in error.message
    for secret in (SECRET, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "757107ea", "padded secret"):
        assert secret not in error.message


def test_a_source_needs_a_secret_or_says_that_it_has_none() -> None:
    assert "insecure = true" in wrong({"name": "ci", "provider": "generic"}).message
    built = build_sources([{"name": "ci", "provider": "generic", "insecure": True}], {}, Path())
    source = built.by_name["ci"]
    assert source.insecure
    assert isinstance(source.sender.scheme, Unsigned)
    assert "insecure" in built.warnings[0]
    assert accepted(source, [], b"{}").verification == "none"


def test_a_preset_needs_a_queue_and_takes_the_accounts() -> None:
    table: dict[str, Any] = {"name": "gh", "provider": "github", "secrets": [SECRET], "preset": "github"}
    assert wrong(table).field == "source.gh.queue"
    source = one({**table, "queue": "inbox", "logins": "my-bot"})
    called = {rule.name: (rule.match.mention, rule.match.target) for rule in source.rules}
    assert list(called)[:2] == ["issue-opened", "issue-labelled"]
    assert called["mention"] == (("my-bot",), ())
    assert called["issue-assigned"] == called["review-submitted"] == ((), ("my-bot",))
    assert github().rules == ()


def test_names_are_unique_and_the_list_is_a_list() -> None:
    with pytest.raises(Misconfigured, match="two of this name"):
        build_sources([GOOD, GOOD], {}, Path())
    for tables in ("text", {"name": "ci"}, ["text"], 3):
        with pytest.raises(Misconfigured, match="source"):
            build_sources(tables, {}, Path())
    assert build_sources([], {}, Path()).get("ci") is None


def test_what_is_unwise_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_text("short\n")
    file.chmod(0o644)
    built = build_sources([{"name": "ci", "provider": "generic", "secrets_file": str(file)}], {}, Path())
    assert any("short" in warning for warning in built.warnings)
    assert any("chmod 600" in warning for warning in built.warnings)


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "empty"), (b"\n\n", "empty"), (b"\xff\xfe", "UTF-8"), (b"x" * 70_000, "over")]
)
def test_a_secrets_file_must_hold_secrets(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "s").write_bytes(content)
    error = wrong({"name": "ci", "provider": "generic", "secrets_file": "s"}, folder=tmp_path)
    assert error.field == "source.ci.secrets_file"
    assert says in error.message


def test_the_generic_schemes_are_built_as_told() -> None:
    told = one(
        {
            **GOOD,
            "header": "X-Signature-512",
            "prefix": "sha512=",
            "algorithm": "sha512",
            "encoding": "base64",
            "signed": "{id}.{timestamp}.{body}",
            "id_header": "X-Delivery",
            "timestamp_header": "X-Time",
            "tolerance_s": 60,
        }
    )
    assert told.sender.scheme == Hmac(
        "x-signature-512",
        prefix="sha512=",
        algorithm="sha512",
        encoding="base64",
        signed="{id}.{timestamp}.{body}",
        timestamp_header="x-time",
        id_header="x-delivery",
        tolerance_s=60,
    )
    assert one({**GOOD, "scheme": "token", "header": "X-Tok"}).sender.scheme == Token("x-tok")
    assert one({**GOOD, "scheme": "bearer"}).sender.scheme == Token("authorization", "Bearer ", "bearer")


def test_each_source_has_a_size_of_its_own() -> None:
    assert one({"name": "a", "provider": "github", "secrets": [SECRET]}).max_bytes == 5 * 1024 * 1024
    for size in (1024, 2**25):
        assert one({"name": "a", "provider": "github", "secrets": [SECRET], "max_bytes": size}).max_bytes == size


WEAK: dict[str, dict[str, Any]] = {
    "insecure": {"name": "a", "provider": "github", "insecure": True},
    "query_token": {"name": "a", "provider": "generic", "query_token": "t", "secrets": [SECRET]},
}


@pytest.mark.parametrize("key", WEAK)
def test_what_proves_too_little_stays_on_this_machine_unless_it_is_told_otherwise(key: str) -> None:
    table = WEAK[key]
    assert one(table).local
    assert not one({**table, "public": True}).local
    with pytest.raises(Misconfigured) as refused:
        build_sources([table], {}, Path(), exposed=True)
    assert refused.value.field == f"source.a.{key}"
    assert "public = true" in refused.value.message
    assert "hooks_port" in refused.value.message
    source = build_sources([{**table, "public": True}], {}, Path(), exposed=True).by_name["a"]
    assert not source.local
    # What is signed may be reached from anywhere.
    assert not build_sources([GOOD], {}, Path(), exposed=True).by_name["ci"].local
