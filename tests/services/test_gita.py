"""The gita registry: what is registered is matched exactly, and three faults are told apart (T14)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom.errors import Invalid, PostroomError, Unavailable
from postroom.services.gita import GitaRegistry, registry_file

Write = Callable[..., GitaRegistry]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the registry as gita does: CRLF, minimal quoting, no header."""
    file = tmp_path / "gita" / "repos.csv"

    def written(*rows: str) -> GitaRegistry:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes("".join(f"{row}\r\n" for row in rows).encode())
        return GitaRegistry(file)

    return written


def repository(folder: Path, name: str) -> Path:
    (folder / name / ".git").mkdir(parents=True)
    return folder / name


def refusal(registry: GitaRegistry, slug: str) -> tuple[type[PostroomError], object]:
    with pytest.raises(PostroomError) as caught:
        registry.check(slug, "target_repo")
    return type(caught.value), caught.value.details.get("reason")


# T14
def test_a_slug_matches_exactly(write: Write, tmp_path: Path) -> None:
    plain, spaced = repository(tmp_path, "alpha"), repository(tmp_path, "a, b")
    registry = write(f"{plain},alpha,,", f'"{spaced}","other/a, b",,', f"{plain},Beta,m,--flag x")
    for slug in ("alpha", "other/a, b", "Beta"):
        registry.check(slug, "target_repo")
    for slug in ("ALPHA", "alph", "alpha ", "beta", "a, b", "", str(plain)):
        assert refusal(registry, slug) == (Invalid, "not_registered")


# T14
def test_a_registry_is_read_again_when_it_has_changed(write: Write, tmp_path: Path) -> None:
    alpha, beta = repository(tmp_path, "alpha"), repository(tmp_path, "beta")
    registry = write(f"{alpha},alpha,,")
    assert refusal(registry, "beta") == (Invalid, "not_registered")
    write(f"{beta},beta,,")
    os.utime(registry.file, ns=(1, 1))
    registry.check("beta", "target_repo")
    assert refusal(registry, "alpha") == (Invalid, "not_registered")


# T14
def test_three_faults_are_three_errors(write: Write, tmp_path: Path) -> None:
    missing = GitaRegistry(tmp_path / "nowhere" / "repos.csv")
    assert refusal(missing, "alpha") == (Unavailable, "registry_missing")
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    assert refusal(GitaRegistry(folder), "alpha") == (Unavailable, "registry_unreadable")
    broken = tmp_path / "broken.csv"
    for content in (b"\xff\xfe,alpha,,\r\n", b'"never closed,alpha\r\n', b"only a path\r\n"):
        broken.write_bytes(content)
        assert refusal(GitaRegistry(broken), "alpha") == (Unavailable, "registry_unreadable")
    assert refusal(write(), "alpha") == (Invalid, "not_registered")


def test_what_is_no_repository_any_more_is_not_registered(write: Write, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    bare = tmp_path / "bare.git"
    (bare / "objects").mkdir(parents=True)
    (bare / "HEAD").touch()
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    (worktree / ".git").write_text("gitdir: elsewhere")
    registry = write(f"{tmp_path / 'plain'},plain,,", f"{bare},bare,b,", f"{worktree},worktree,,")
    assert refusal(registry, "plain") == (Invalid, "not_registered")
    registry.check("bare", "target_repo")
    registry.check("worktree", "target_repo")


def test_one_that_is_not_required_lets_anything_pass(tmp_path: Path) -> None:
    GitaRegistry(tmp_path / "nowhere.csv", required=False).check("whatever", "target_repo")


def test_a_folder_belongs_to_the_innermost_repository(write: Write, tmp_path: Path) -> None:
    outer = repository(tmp_path, "outer")
    inner = repository(outer, "inner")
    (inner / "src").mkdir()
    registry = write(f"{outer},outer,,", f"{inner},outer/inner,,")
    assert registry.slug_of(inner / "src") == "outer/inner"
    assert registry.slug_of(outer) == "outer"
    assert registry.slug_of(tmp_path) is None
    assert GitaRegistry(tmp_path / "nowhere.csv").slug_of(outer) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "home/.config/gita/repos.csv"),
        ({"XDG_CONFIG_HOME": "xdg"}, "xdg/gita/repos.csv"),
        ({"XDG_CONFIG_HOME": "xdg", "GITA_PROJECT_HOME": "own"}, "own/gita/repos.csv"),
        ({"XDG_CONFIG_HOME": "", "GITA_PROJECT_HOME": ""}, "home/.config/gita/repos.csv"),
    ],
)
def test_the_file_is_where_gita_looks(environ: dict[str, str], expected: str) -> None:
    assert registry_file(environ, Path("home")) == Path(expected)
