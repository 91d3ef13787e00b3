"""Where those who work here sit: directories as their carriers tell them, branches as git's files do."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom.endpoint import CarrierKind, Endpoint
from postroom.office import compose
from postroom.services import workplaces
from postroom.services.workplaces import branch_of
from tests.offices import ADMIN, Bench
from tests.processes import until
from tests.services.mailing import Mail

HEAD = "ref: refs/heads/feature/one\n"


def _repository(folder: Path, head: str = HEAD) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text(head)
    return folder


def test_the_branch_of_a_directory_and_of_those_below_it(tmp_path: Path) -> None:
    below = _repository(tmp_path / "repo") / "src" / "deep"
    below.mkdir(parents=True)
    assert branch_of(str(tmp_path / "repo")) == "feature/one"
    assert branch_of(str(below)) == "feature/one"
    assert branch_of(str(tmp_path / "repo" / "gone" / "since")) == "feature/one"


def test_a_further_worktree_has_its_head_elsewhere(tmp_path: Path) -> None:
    git = _repository(tmp_path / "repo") / ".git" / "worktrees" / "two"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/two\n")
    for name, said in (("far", str(git)), ("near", "../repo/.git/worktrees/two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".git").write_text(f"gitdir: {said}\n")
        assert branch_of(str(tmp_path / name)) == "two"


@pytest.mark.parametrize(
    "head",
    [
        "",
        "1f0e2d3c4b5a69788796a5b4c3d2e1f001020304\n",
        "ref: refs/remotes/x\n",
        "ref: refs/heads/a\x1b[31m\n",
        "\udcff",
    ],
)
def test_no_branch_is_made_up(tmp_path: Path, head: str) -> None:
    repository = _repository(tmp_path / "repo", "")
    (repository / ".git" / "HEAD").write_bytes(head.encode("utf-8", "surrogateescape"))
    assert branch_of(str(repository)) is None


def _pipe(repository: Path) -> None:
    (repository / ".git" / "HEAD").unlink()
    os.mkfifo(repository / ".git" / "HEAD")


def _folder(repository: Path) -> None:
    (repository / ".git" / "HEAD").unlink()
    (repository / ".git" / "HEAD").mkdir()


def _missing(repository: Path) -> None:
    (repository / ".git" / "HEAD").unlink()


@pytest.mark.parametrize("spoil", [_pipe, _folder, _missing])
def test_what_is_no_file_is_not_read(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    repository = _repository(tmp_path / "repo")
    spoil(repository)
    assert branch_of(str(repository)) is None


@pytest.mark.parametrize("directory", ["", ".", "relative", "/nowhere/at/all", "/\x00", "/" + "x" * 5000])
def test_what_is_no_directory_has_no_branch(directory: str) -> None:
    assert branch_of(directory) is None


async def test_who_says_in_which_directory_and_on_which_branch(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workplaces, "LOOK_S", 60.0)
    monkeypatch.setattr(workplaces, "READ_S", 60.0)
    asked: list[str] = []
    places = {"ann": str(_repository(tmp_path / "repo")), "bob": str(tmp_path)}

    async def directory(endpoint: Endpoint) -> str | None:
        asked.append(endpoint.mailbox)
        if endpoint.mailbox == "cid":
            raise RuntimeError("the carrier is broken")
        return places.get(endpoint.mailbox)

    mail = Mail(Bench(bench.store, compose(bench.store, directory=directory)))
    for number, name in enumerate(("ann", "bob", "cid", "dan")):
        await mail.pane(number, name=name)
    seen = {one.name: (one.directory, one.branch) for one in await mail.office.registry.who(ADMIN)}
    assert seen == {
        "ann": (str(tmp_path / "repo"), "feature/one"),
        "bob": (str(tmp_path), None),
        "cid": (None, None),
        "dan": (None, None),
    }
    asked.clear()
    mail.bench.move(46_000)
    assert {one.directory for one in await mail.office.registry.who(ADMIN)} == {None}
    assert asked == [], "nobody is asked where the silent ones are"


async def test_a_place_that_does_not_answer_is_not_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workplaces, "LOOK_S", 0.05)
    gone: list[str] = []

    async def directory(endpoint: Endpoint) -> str | None:
        try:
            await asyncio.Event().wait()
        finally:
            gone.append(endpoint.mailbox)
        return "/"

    mail = Mail(Bench(bench.store, compose(bench.store, directory=directory)))
    await mail.pane(1, name="ann")
    async with asyncio.timeout(30):
        (ann,) = await mail.office.registry.who(ADMIN)
    assert ann.directory is None
    assert gone == ["ann"]


async def test_a_branch_that_cannot_be_read_in_time_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workplaces, "LOOK_S", 60.0)
    monkeypatch.setattr(workplaces, "READ_S", 0.05)
    release = threading.Event()
    reads: list[str] = []

    def stuck(directory: str) -> str | None:
        reads.append(directory)
        release.wait(60)
        return "main"

    monkeypatch.setattr(workplaces, "branch_of", stuck)

    async def directory(endpoint: Endpoint) -> str | None:
        return "/away"

    mail = Mail(Bench(bench.store, compose(bench.store, directory=directory)))
    await mail.pane(1, name="ann")
    try:
        for _ in range(3):
            (ann,) = await mail.office.registry.who(ADMIN)
            assert (ann.directory, ann.branch) == ("/away", None)
        await until(lambda: bool(reads), "the first read has begun")
        assert reads == ["/away"], "a read that hangs has no other one beside it"
    finally:
        release.set()


async def test_many_who_ask_at_once_are_all_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workplaces, "LOOK_S", 60.0)
    monkeypatch.setattr(workplaces, "READ_S", 60.0)
    repository = str(_repository(tmp_path / "repo"))

    async def directory(endpoint: Endpoint) -> str | None:
        return repository

    places = workplaces.Workplaces(directory)
    ann = Endpoint(
        1, "ep_1", "ann", CarrierKind.TMUX, "{}", "tmux:1", "any", "injected", 5, False, True, None, "ann", 0, 0, None
    )

    async def ask() -> set[str | None]:
        return {(await places.of([ann]))["ep_1"].branch for _ in range(20)}

    assert set().union(*await asyncio.gather(*(ask() for _ in range(8)))) == {"feature/one"}
