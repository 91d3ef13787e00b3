"""In which directory the program of an attached pane is."""

from __future__ import annotations

from postroom.carriers.tmux import TmuxCarrier
from tests.processes import until
from tests.terminals.rig import Terminals, endpoint_at


async def test_a_pane_says_where_its_program_is(terminals: Terminals, carrier: TmuxCarrier) -> None:
    place = terminals.folder / "work ü 'here'"
    place.mkdir()
    pane = terminals.open(["sh", "-c", 'cd "$0" && exec cat', str(place)])
    await until(lambda: terminals.tmux("display-message", "-p", "-t", pane, "#{pane_current_path}") == str(place), "cd")
    attached = endpoint_at(*carrier.check_address({"socket": terminals.socket, "pane": pane}))
    assert await carrier.directory(attached) == str(place)
    other = terminals.open(["cat"])
    terminals.tmux("kill-pane", "-t", pane)
    assert await carrier.directory(attached) is None
    attached = endpoint_at(*carrier.check_address({"socket": terminals.socket, "pane": other}))
    assert await carrier.directory(attached) is not None
    terminals.end_server()
    assert await carrier.directory(attached) is None
    assert await carrier.directory(endpoint_at({"socket": "/nowhere"}, "tmux:x")) is None
