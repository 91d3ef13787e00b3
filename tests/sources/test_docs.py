"""The pages about senders: what they say to write is taken as it stands, and every sender has its page."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from postroom.sources.settings import build_sources
from postroom.sources.table import SENDERS
from tests.sources.signing import SECRET, STANDARD_SECRET

PAGES = Path(__file__).parents[2] / "docs/senders"
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("provider", [*SENDERS, "index"])
def test_the_settings_on_a_page_are_right(provider: str) -> None:
    page = (PAGES / f"{provider}.md").read_text("utf-8")
    blocks = TOML.findall(page)
    assert blocks
    for block in blocks:
        tables = tomllib.loads(block)["source"]
        names = {name for table in tables for name in table["secrets_env"]}
        built = build_sources(
            tables, dict.fromkeys(names, STANDARD_SECRET if provider == "standard" else SECRET), Path()
        )
        assert {source.provider for source in built.by_name.values()} == {"github" if provider == "index" else provider}
        assert built.warnings == ()


def test_the_index_leads_to_every_page() -> None:
    index = (PAGES / "index.md").read_text("utf-8")
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == set(SENDERS)
    assert {page.stem for page in PAGES.glob("*.md")} == {*SENDERS, "index"}


def test_the_script_for_ci_signs_as_its_source_wants() -> None:
    """The page's own command, with openssl, against the page's own source."""
    page = (PAGES / "generic.md").read_text("utf-8")
    script = re.search(r"^```sh\n(body=.*?)^curl", page, re.MULTILINE | re.DOTALL)
    assert script is not None
    told = subprocess.run(
        ["sh", "-ec", script.group(1) + 'printf "%s\\n%s\\n%s" "$now" "$mac" "$body"'],
        env={"CI_WEBHOOK_SECRET": SECRET, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    now, mac, body = told.split("\n")
    source = build_sources(tomllib.loads(TOML.findall(page)[0])["source"], {"CI_WEBHOOK_SECRET": SECRET}, Path()).get(
        "ci"
    )
    assert source is not None
    headers = {"x-timestamp": now, "x-delivery": "build-42", "x-signature": f"sha256={mac}"}
    got = source.receive(
        [(name.encode(), value.encode()) for name, value in headers.items()], body.encode(), int(now) * 1000
    )
    assert getattr(got, "delivery_key", got) == "build-42"
