"""The post's settings: what is read of [[opencode]], [gita] and [post], and what is refused by file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.config import Settings, load_settings
from postroom.config_post import RATE_PER_MINUTE, OpencodePlace
from postroom.delivery import Policy
from postroom.errors import Misconfigured
from postroom.services.allowed import Allowance


def loaded(folder: Path, text: str, **environ: str) -> Settings:
    file = folder / "postroom.toml"
    file.write_text(text, "utf-8")
    return load_settings(config=str(file), data=str(folder), environ=environ)


def test_nothing_said_is_the_default(tmp_path: Path) -> None:
    post = loaded(tmp_path, "").post
    assert (post.opencode, post.gita_required, post.policy) == ((), True, Policy())
    assert (post.allow, post.rate_per_minute) == ((), RATE_PER_MINUTE)


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from a file\n", "utf-8")
    settings = loaded(
        tmp_path,
        f"""
        [[opencode]]
        url = "http://127.0.0.1:4096/"
        password_env = "OPENCODE_SERVER_PASSWORD"
        [[opencode]]
        url = "http://localhost:4097"
        password_file = "{tmp_path / "password"}"
        [[opencode]]
        url = "http://[::1]:4098"
        [gita]
        required = false
        [post]
        lease_s = 12
        ack_s = 1.5
        unknown_s = 2
        rate_per_minute = 90
        [[post.allow]]
        from = "ses_*"
        to = ["reviewer", "ci-*", "#team/*"]
        [[post.allow]]
        from = ["ann", "bob"]
        to = "repo:other/tools"
        """,
        OPENCODE_SERVER_PASSWORD="from the environment",
    )
    assert settings.post.opencode == (
        OpencodePlace("http://127.0.0.1:4096", "from the environment"),
        OpencodePlace("http://localhost:4097", "from a file"),
        OpencodePlace("http://[::1]:4098"),
    )
    assert settings.post.gita_required is False
    assert settings.post.policy == Policy(lease=12_000, ack=1_500, unknown=2_000)
    assert settings.post.rate_per_minute == 90
    assert settings.post.allow == (
        Allowance(("ses_*",), ("reviewer", "ci-*", "#team/*")),
        Allowance(("ann", "bob"), ("repo:other/tools",)),
    )
    shown = " ".join(" ".join(row) for row in settings.shown())
    assert "http://127.0.0.1:4096 with a password" in shown
    assert "from the environment" not in shown
    assert f"post.rate_per_minute 90 {tmp_path}" in shown
    assert "post.allow[1] ann, bob to repo:other/tools" in shown


def test_entries_may_stand_in_one_line(tmp_path: Path) -> None:
    post = loaded(
        tmp_path, "[post]\nrate_per_minute = 0\nallow = [{from = 'ann', to = ['b', 'c']}, {from = '*', to = 'd'}]"
    ).post
    assert (post.rate_per_minute, len(post.allow)) == (0, 2)
    assert post.allow[0] == Allowance(("ann",), ("b", "c"))


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("opencode = 1", 1, "opencode"),
        ("\n[[opencode]]\nurl = 4096", 3, "opencode[0].url"),
        ("[[opencode]]\nurl = 'http://example.com:4096'", 2, "opencode[0].url"),
        ("[[opencode]]\nurl = 'http://127.0.0.1:1/path'", 2, "opencode[0].url"),
        ("[[opencode]]\nurl = 'http://127.0.0.1:1'\nport = 3", 3, "opencode[0].port"),
        (
            "[[opencode]]\nurl = 'http://127.0.0.1:1'\n[[opencode]]\nurl = 'http://127.0.0.1:1/'",
            4,
            "opencode[1].url",
        ),
        ("[[opencode]]\nurl = 'http://[::1]:1'\npassword_env = 'NOT_SET'", 3, "opencode[0].password_env"),
        ("[[opencode]]\nurl = 'http://[::1]:1'\npassword_file = '/nowhere/at/all'", 3, "opencode[0].password_file"),
        ("[gita]\nrequired = 'no'", 2, "gita.required"),
        ("[gita]\nwanted = false", 2, "gita.wanted"),
        ("[post]\nlease_s = 1", 2, "post.lease_s"),
        ("[post]\nack_s = true", 2, "post.ack_s"),
        ("[post]\nspeed = 3", 2, "post.speed"),
        ("[post]\nrate_per_minute = 1.5", 2, "post.rate_per_minute"),
        ("[post]\nrate_per_minute = true", 2, "post.rate_per_minute"),
        ("[post]\nrate_per_minute = -1", 2, "post.rate_per_minute"),
        ("[post]\nallow = 'ann'", 2, "post.allow"),
        ("[post]\nallow = ['ann']", 2, "post.allow"),
        ("[[post.allow]]\nfrom = 'ann'\nto = 'b'\n[[post.allow]]\nfrom = 'ann'\n\nat = 'b'", 7, "post.allow[1].at"),
        ("[[post.allow]]\nto = 'b'", 1, "post.allow[0].from"),
        ("[[post.allow]]\nfrom = 'ann'\nto = []", 3, "post.allow[0].to"),
        ("[[post.allow]]\nfrom = 'ann'\nto = ['b', 7]", 3, "post.allow[0].to"),
        ("[[post.allow]]\nfrom = '#team'\nto = 'b'", 2, "post.allow[0].from"),
        ("[[post.allow]]\nfrom = 'ann'\nto = 'a b'", 3, "post.allow[0].to"),
        ("[post]\nallow = [{from = 'ann', to = ''}]", 2, "post.allow[0].to"),
    ],
)
def test_a_wrong_key_is_named_with_its_place(tmp_path: Path, text: str, line: int, key: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        loaded(tmp_path, text)
    assert caught.value.field == key
    assert f"postroom.toml:{line}: {key}: expected" in caught.value.message
