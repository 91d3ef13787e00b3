"""docs/mcp.md says what is served."""

from __future__ import annotations

from pathlib import Path

from postroom.doors.mcp.page import page
from postroom.doors.mcp.tools import TOOLS
from tests.doors.mcp_rig import at_desk, new_desk

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"


# S23
async def test_the_page_is_what_is_served() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run: python -m postroom.doors.mcp.page > docs/mcp.md"
    async with at_desk(new_desk()) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(listed) == [spec.name for spec in TOOLS]
    for name, tool in listed.items():
        section = written.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert tool.description
        assert tool.description in section
        for argument in tool.input_schema["properties"]:
            assert f"| `{argument}` |" in section
