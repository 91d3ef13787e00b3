"""`postroom demo`: which stories there are, and how one is played, printed live and cleared away."""

from __future__ import annotations

import http.client
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from postroom.demos import ci, duo, survival
from postroom.demos.stage import Failed, Stage, staged
from postroom.doors.cli.connection import Unreachable
from postroom.errors import PostroomError

STOPPED: Final = 130
FAULTS: Final = (
    Failed,
    Unreachable,
    PostroomError,
    OSError,
    subprocess.SubprocessError,
    http.client.HTTPException,
)


class Story(NamedTuple):
    """A demo: how it is played, what it proves, and how long it may take (seconds)."""

    play: Callable[[Stage], bool]
    proves: str
    deadline_s: float


STORIES: Final[Mapping[str, Story]] = {
    "survival": Story(survival.play, survival.TITLE, survival.DEADLINE_S),
    "duo": Story(duo.play, duo.TITLE, duo.DEADLINE_S),
    "ci": Story(ci.play, ci.TITLE, ci.DEADLINE_S),
}


def run_demo(name: str, *, keep: bool = False) -> int:
    """Play the demo of this name and print it live: 0 when everything was proved, 130 when it was stopped, else 1."""
    story = STORIES[name]
    started = time.monotonic()

    def say(text: str) -> None:
        for line in text.split("\n"):
            print(f"{time.monotonic() - started:5.1f}s  {line}" if line else "", flush=True)

    try:
        with staged(say, story.deadline_s, keep=keep) as stage:
            proved = story.play(stage)
    except KeyboardInterrupt:
        say("stopped; what was started has been ended")
        return STOPPED
    except FAULTS as error:
        say(f"the demo failed: {error}")
        proved = False
    say(f"proved: {story.proves}" if proved else "NOT proved")
    return 0 if proved else 1
