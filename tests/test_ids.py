"""Ids and secrets: their shape, their order, and what a wrong one is told."""

from __future__ import annotations

import base64
import hashlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import NotFound
from postroom.ids import Prefix, RandomIds, check_id, new_secret, secret_digest

GOOD = "td_01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.parametrize("prefix", list(Prefix))
def test_an_id_is_its_prefix_and_a_uuid7(prefix: Prefix) -> None:  # S13
    made = RandomIds().new(prefix)
    assert made.startswith(prefix.value)
    assert uuid.UUID(made.removeprefix(prefix.value)).version == 7
    assert check_id(made, prefix, "thing") == made


def test_ids_are_unique_and_in_the_order_of_their_making() -> None:
    ids = RandomIds()
    made = [ids.new(Prefix.TODO) for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "td_",
        GOOD.replace("td_", "ev_"),
        GOOD.replace("td_", "xx_"),
        GOOD.removeprefix("td_"),
        GOOD.upper(),
        GOOD[:-1],
        GOOD + "0",
        GOOD + "\n",
        " " + GOOD,
        GOOD.replace("-", ""),
        GOOD.replace("a", "g"),
        "td_" + "0" * 1_000_000,
        "td_\x00\ud800",
    ],
)
def test_another_shape_names_nothing(wrong: str) -> None:
    with pytest.raises(NotFound) as refused:
        check_id(wrong, Prefix.TODO, "todo")
    shown = refused.value.as_dict()
    assert (shown["code"], shown["field"]) == ("not_found", "id")
    assert "todo ids look like td_<uuid>" in refused.value.message
    assert len(refused.value.message) < 600
    refused.value.message.encode()


@given(st.text())
def test_no_other_text_passes_for_an_id(text: str) -> None:
    with pytest.raises(NotFound):
        check_id(text, Prefix.EVENT, "event")


def test_a_secret_is_256_random_bits() -> None:
    made = {new_secret() for _ in range(1000)}
    assert len(made) == 1000
    for secret in made:
        assert secret.startswith("tk_")
        assert len(base64.urlsafe_b64decode(secret.removeprefix("tk_") + "=")) == 32


def test_a_digest_is_the_sha256_of_the_secret() -> None:
    assert secret_digest("tk_abc") == hashlib.sha256(b"tk_abc").hexdigest()
    assert secret_digest("tk_abc") != secret_digest("tk_abd")


def test_what_no_header_can_carry_has_a_digest_all_the_same() -> None:
    assert len(secret_digest("tk_\ud800é\x00")) == 64
