"""The webhooks of the settings: what is read of [[webhook]], and what is refused by file, line and key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from postroom.carriers.webhook_place import WebhookPlace
from postroom.config import Settings, load_settings
from postroom.endpoint import CarrierKind
from postroom.errors import Misconfigured

KEYS = [bytes([n]) * 32 for n in range(5)]
SECRETS = ["whsec_" + base64.b64encode(key).decode() for key in KEYS]
MINIMAL = f'[[webhook]]\nname = "ops"\nurl = "https://example.com/hook"\nsecrets = ["{SECRETS[0]}"]\n'


def loaded(folder: Path, text: str, **environ: str) -> Settings:
    file = folder / "postroom.toml"
    file.write_text(text, "utf-8")
    return load_settings(config=str(file), data=str(folder), environ=environ)


def test_nothing_said_is_none(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").webhooks == ()


def test_the_least_that_is_needed(tmp_path: Path) -> None:
    (place,) = loaded(tmp_path, MINIMAL).webhooks
    assert place == WebhookPlace("ops", "https://example.com/hook", (KEYS[0],))
    assert (place.host, place.port) == ("example.com", 443)
    new = place.endpoint()
    assert (new.carrier, new.name, new.target_key, new.reach) == (
        CarrierKind.WEBHOOK,
        "ops",
        "webhook:ops",
        "webhook:ops",
    )


def test_every_key_is_read_and_no_secret_is_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRETS[1]}\n{SECRETS[2]}\n", "utf-8")
    settings = loaded(
        tmp_path,
        """
        [[webhook]]
        name = "ops"
        url = "http://[::1]:8080/hook?token=hidden"
        allow_private = true
        secret_file = "secret"
        queues = ["review", "build", "review"]
        channels = ["dead-letters"]
        timeout_s = 2.5
        max_payload_bytes = 1000
        [[webhook]]
        name = "night"
        url = "https://example.com:8443"
        secret_env = "HOOK_SECRET"
        """,
        HOOK_SECRET=f"{SECRETS[3]} {SECRETS[4]}",
    )
    first, second = settings.webhooks
    assert first == WebhookPlace(
        "ops",
        "http://[::1]:8080/hook?token=hidden",
        (KEYS[1], KEYS[2]),
        ("review", "build"),
        ("dead-letters",),
        True,
        2.5,
        1000,
    )
    assert (first.host, first.port) == ("::1", 8080)
    assert (second.keys, second.port) == ((KEYS[3], KEYS[4]), 8443)
    assert first.endpoint().address == {"url": "http://[::1]:8080/hook"}
    rows = {key: value for key, value, _ in settings.shown()}
    assert rows["webhook.ops"] == (
        "http://[::1]:8080/hook with 2 secrets, queues review build, channels dead-letters, private addresses allowed"
    )
    shown = " ".join(rows.values()) + repr(settings)
    assert not any(secret in shown for secret in SECRETS)


@pytest.mark.parametrize(
    ("lines", "line", "key"),
    [
        ("name = 3", 1, "name"),
        ("name = 'a b'", 1, "name"),
        ("name = 'ses_1'", 1, "name"),
        ("name = 'ep_1'", 1, "name"),
        ("name = 'postroom'", 1, "name"),
        ("url = 3", 2, "url"),
        ("url = 'example.com'", 2, "url"),
        ("url = 'ftp://example.com'", 2, "url"),
        ("url = 'https://'", 2, "url"),
        ("url = 'https:///path'", 2, "url"),
        ("url = 'https://ann:secret@example.com'", 2, "url"),
        ("url = 'https://example.com/#part'", 2, "url"),
        ("url = 'https://example.com:0'", 2, "url"),
        ("url = 'https://example.com:99999'", 2, "url"),
        ("url = 'https://example.com:port'", 2, "url"),
        ("url = 'https://[::1'", 2, "url"),
        ("url = 'https://exa mple.com'", 2, "url"),
        ("url = 'https://bücher.example'", 2, "url"),
        ("url = 'https://exam%70le.com'", 2, "url"),
        ("url = 'http://example.com'", 2, "url"),
        ("secrets = 'whsec_x'", 3, "secrets"),
        ("secrets = []", 3, "secrets"),
        ("secrets = ['hunter2']", 3, "secrets"),
        ("secrets = ['whsec_%%%']", 3, "secrets"),
        (f"secrets = ['whsec_{base64.b64encode(b'x' * 23).decode()}']", 3, "secrets"),
        (f"secrets = ['whsec_{base64.b64encode(b'x' * 65).decode()}']", 3, "secrets"),
        (f"secrets = {SECRETS}", 3, "secrets"),
        ("secret_env = 'HOOK_SECRET'", 4, "secret_env"),
        ("secret_file = 'secret'", 4, "secret_file"),
        ("queues = 'review'", 4, "queues"),
        ("queues = ['No Good']", 4, "queues"),
        ("channels = [1]", 4, "channels"),
        (f"channels = {[f'c{n}' for n in range(65)]}", 4, "channels"),
        ("allow_private = 'yes'", 4, "allow_private"),
        ("timeout_s = 0", 4, "timeout_s"),
        ("timeout_s = 16", 4, "timeout_s"),
        ("timeout_s = true", 4, "timeout_s"),
        ("max_payload_bytes = 65537", 4, "max_payload_bytes"),
        ("max_payload_bytes = 1.5", 4, "max_payload_bytes"),
        ("ack = true", 4, "ack"),
    ],
)
def test_a_wrong_key_is_named_with_its_place(tmp_path: Path, lines: str, line: int, key: str) -> None:
    rows = MINIMAL.splitlines()
    named = [n for n, row in enumerate(rows) if row.startswith(f"{key} =")]
    if named:
        rows[named[0]] = lines
    else:
        rows.append(lines)
    (tmp_path / "empty").touch()
    with pytest.raises(Misconfigured) as caught:
        loaded(tmp_path, "\n".join(rows))
    assert caught.value.field == f"webhook[0].{key}"
    assert f"postroom.toml:{line + 1}: webhook[0].{key}: expected" in caught.value.message
    assert "hunter2" not in caught.value.message
    assert not any(secret in caught.value.message for secret in SECRETS)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("webhook = 1", "webhook"),
        ("webhook = [1]", "webhook"),
        (MINIMAL.replace("name", "# name"), "webhook[0].name"),
        (MINIMAL.replace("url", "# url"), "webhook[0].url"),
        (MINIMAL.replace("secrets", "# secrets"), "webhook[0].secrets"),
        (MINIMAL + MINIMAL, "webhook[1].name"),
        (MINIMAL + "secret_env = 'NOT_SET'", "webhook[0].secret_env"),
        (MINIMAL.replace("secrets = ", "secret_file = '/nowhere/at/all' # "), "webhook[0].secret_file"),
        (MINIMAL.replace("secrets = ", "secret_file = 1 # "), "webhook[0].secret_file"),
        (MINIMAL.replace("secrets = ", "secret_env = 'NOT_SET' # "), "webhook[0].secret_env"),
        (MINIMAL.replace("secrets = ", "secret_env = 'EMPTY' # "), "webhook[0].secret_env"),
        (MINIMAL.replace("secrets = ", "secret_env = 'BLANK' # "), "webhook[0].secret_env"),
    ],
)
def test_what_is_missing_or_twice_is_named(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        loaded(tmp_path, text, EMPTY="", BLANK="  ")
    assert caught.value.field == key
    assert f"{key}: expected" in caught.value.message
