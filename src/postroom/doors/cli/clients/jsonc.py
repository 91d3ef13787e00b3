"""JSON with comments, edited in place: one member set or taken away, every other byte as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_DEPTH: Final = 200
UNIT: Final = "  "
BOM: Final = "\ufeff"

_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"true|false|null")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_COMMENT: Final = re.compile(r"//[^\r\n]*|/\*(?:[^*]|\*(?!/))*\*/")
_REST_OF_LINE: Final = re.compile(r"(?:[ \t]+|/\*(?:[^*\r\n]|\*(?!/))*\*/)*(?://[^\r\n]*)?")


class NotJson(ValueError):
    """The text is not what it is expected to be; line and column, from 1, say where."""

    def __init__(self, text: str, offset: int, message: str) -> None:
        super().__init__(message)
        self.line = text.count("\n", 0, offset) + 1
        self.column = offset - (text.rfind("\n", 0, offset) + 1) + 1
        self.message = message

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


@dataclass(frozen=True, slots=True)
class Value:
    """A value and the offsets that it spans; an object's members, None for any other kind."""

    data: Any
    start: int
    end: int
    members: tuple[Member, ...] | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One key of an object with its value; `comma` is the offset of the comma after it, None for none."""

    key: str
    start: int
    value: Value
    comma: int | None


def parse(text: str, *, comments: bool = True) -> Value:
    """The whole text as one value. Without `comments` it has to be plain JSON. Raises NotJson."""
    reader = _Reader(text, comments)
    value = reader.value(reader.skip(1 if text.startswith(BOM) else 0), 0)
    end = reader.skip(value.end)
    if end != len(text):
        raise NotJson(text, end, "expected the end of the file")
    return value


def find(text: str, path: Sequence[str], *, comments: bool = True) -> Any:
    """The value at a path, None where there is none. Raises NotJson, also when something on the way is no object."""
    at = _walk(text, path, comments)
    return None if at is None else at.data


def object_at(text: str, path: Sequence[str], *, comments: bool = True) -> Mapping[str, Any] | None:
    """The object at a path, None where there is none or no text at all. Raises NotJson, also when it is no object."""
    if blank(text):
        return None
    at = _walk(text, path, comments)
    if at is None:
        return None
    if at.members is None:
        raise NotJson(text, at.start, f"expected an object as {'.'.join(path)}")
    found: Mapping[str, Any] = at.data
    return found


def blank(text: str) -> bool:
    """Whether there is nothing but space."""
    return not text.removeprefix(BOM).strip(" \t\r\n")


def put(text: str, path: Sequence[str], value: object, *, comments: bool = True) -> str:
    """The text with this value at the path; what is missing on the way is made, and an equal value changes nothing.

    A text of nothing but space becomes a file of its own. Raises NotJson.
    """
    if blank(text):
        return json.dumps(_nested(path, value), indent=UNIT, ensure_ascii=False) + "\n"
    at = parse(text, comments=comments)
    inline = False
    for depth, key in enumerate(path):
        member = _member(text, at, key, path[:depth])
        if member is None:
            return _insert(text, at, key, _nested(path[depth + 1 :], value), inline)
        inline = not _on_own_line(text, member)
        at = member.value
    if _same(at.data, value):
        return text
    return text[: at.start] + _written(text, value, _indent_at(text, at.start), inline) + text[at.end :]


def drop(text: str, path: Sequence[str], *, comments: bool = True) -> str:
    """The text without the member at the path, nor the objects on the way that it leaves empty. Raises NotJson.

    An object with a comment in it or before it is not empty.
    """
    if _walk(text, path, comments) is None:
        return text
    text, empty = _drop_one(text, path, comments)
    for depth in range(len(path) - 1, 0, -1):
        if not empty or _has_comment(text, path[:depth], comments):
            break
        text, empty = _drop_one(text, path[:depth], comments)
    return text


class _Reader:
    def __init__(self, text: str, comments: bool) -> None:
        self._text = text
        self._comments = comments

    def skip(self, at: int) -> int:
        """The offset after space and comments."""
        while True:
            space = _SPACE.match(self._text, at)
            assert space is not None
            at = space.end()
            if not self._text.startswith(("//", "/*"), at):
                return at
            if not self._comments:
                raise NotJson(self._text, at, "expected plain JSON, which has no comments")
            comment = _COMMENT.match(self._text, at)
            if comment is None:
                raise NotJson(self._text, at, "expected the comment to end with */")
            at = comment.end()

    def value(self, at: int, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise NotJson(self._text, at, f"expected at most {MAX_DEPTH} levels")
        match self._text[at : at + 1]:
            case "{":
                return self._object(at, depth)
            case "[":
                return self._array(at, depth)
            case '"':
                return self._string(at)
        found = _NUMBER.match(self._text, at) or _WORD.match(self._text, at)
        if found is None:
            raise NotJson(self._text, at, "expected a value")
        try:
            return Value(json.loads(found[0]), at, found.end())
        except ValueError:  # a number of more digits than the interpreter reads
            raise NotJson(self._text, at, "expected a number of fewer digits") from None

    def _string(self, at: int) -> Value:
        found = _STRING.match(self._text, at)
        if found is None:
            raise NotJson(self._text, at, "expected a string that ends on its line and has no broken escape")
        return Value(json.loads(found[0]), at, found.end())

    def _object(self, start: int, depth: int) -> Value:
        members: list[Member] = []
        at = self.skip(start + 1)
        while self._text[at : at + 1] != "}":
            if self._text[at : at + 1] != '"':
                raise NotJson(self._text, at, 'expected a key in "quotes", or }')
            key = self._string(at)
            colon = self.skip(key.end)
            if self._text[colon : colon + 1] != ":":
                raise NotJson(self._text, colon, "expected : after the key")
            value = self.value(self.skip(colon + 1), depth + 1)
            at, comma = self._after(value.end, "}")
            members.append(Member(key.data, key.start, value, comma))
        data = {member.key: member.value.data for member in members}
        return Value(data, start, at + 1, tuple(members))

    def _array(self, start: int, depth: int) -> Value:
        items: list[Any] = []
        at = self.skip(start + 1)
        while self._text[at : at + 1] != "]":
            item = self.value(at, depth + 1)
            items.append(item.data)
            at, _ = self._after(item.end, "]")
        return Value(items, start, at + 1)

    def _after(self, end: int, close: str) -> tuple[int, int | None]:
        """Where to go on after a value, and the comma that was there."""
        at = self.skip(end)
        if self._text[at : at + 1] == close:
            return at, None
        if self._text[at : at + 1] != ",":
            raise NotJson(self._text, at, f"expected , or {close}")
        after = self.skip(at + 1)
        if not self._comments and self._text[after : after + 1] == close:
            raise NotJson(self._text, at, f"expected plain JSON, which has no comma before {close}")
        return after, at


def _member(text: str, at: Value, key: str, path: Sequence[str]) -> Member | None:
    """The one member of this key. Raises NotJson when the value is no object, or has the key twice."""
    if at.members is None:
        raise NotJson(text, at.start, f"expected an object{' as ' + '.'.join(path) if path else ''}")
    found = [member for member in at.members if member.key == key]
    if len(found) > 1:
        raise NotJson(text, found[1].start, f"expected one {'.'.join([*path, key])}, and this is another")
    return found[0] if found else None


def _walk(text: str, path: Sequence[str], comments: bool) -> Value | None:
    at = parse(text, comments=comments)
    for depth, key in enumerate(path):
        member = _member(text, at, key, path[:depth])
        if member is None:
            return None
        at = member.value
    return at


def _nested(path: Sequence[str], value: object) -> object:
    for key in reversed(path):
        value = {key: value}
    return value


def _same(one: object, other: object) -> bool:
    # 1, 1.0 and true are equal to Python, and three things in a file.
    return json.dumps(one) == json.dumps(other)


def _insert(text: str, at: Value, key: str, value: object, inline: bool) -> str:
    """The text with a member more at the end of an object that has no such key."""
    assert at.members is not None
    name = json.dumps(key, ensure_ascii=False)
    newline = _newline(text)
    outer = _indent_at(text, at.start)
    if not at.members:
        close = at.end - 1
        if inline:
            return f"{text[:close]}{name}: {_written(text, value, '', True)}{text[close:]}"
        indent = outer + _unit(text)
        entry = f"{newline}{indent}{name}: {_written(text, value, indent, False)}"
        inside = text[at.start + 1 : close].rstrip(" \t\r\n")
        return f"{text[: at.start + 1]}{inside}{entry}{newline}{outer}{text[close:]}"
    last = at.members[-1]
    end, comma = (last.value.end, ",") if last.comma is None else (last.comma + 1, "")
    after = "" if last.comma is None else ","
    if not _on_own_line(text, last):
        return f"{text[:end]}{comma} {name}: {_written(text, value, '', True)}{after}{text[end:]}"
    rest = _REST_OF_LINE.match(text, end)
    assert rest is not None
    indent = _indent_at(text, last.start)
    entry = f"{newline}{indent}{name}: {_written(text, value, indent, False)}{after}"
    return f"{text[:end]}{comma}{text[end : rest.end()]}{entry}{text[rest.end() :]}"


def _drop_one(text: str, path: Sequence[str], comments: bool) -> tuple[str, bool]:
    """The text without one member that is there, and whether its object has nothing left, comments included."""
    parent = _walk(text, path[:-1], comments)
    assert parent is not None
    assert parent.members is not None
    number = next(number for number, member in enumerate(parent.members) if member.key == path[-1])
    member = parent.members[number]
    start = member.start
    while text[start - 1] in " \t":
        start -= 1
    end = member.value.end
    if member.comma is not None and not text[end : member.comma].strip(" \t\r\n"):
        end = member.comma + 1
    own_line = text[start - 1] == "\n"
    if own_line:
        start -= 2 if text[start - 2] == "\r" else 1
        before = parent.start + 1 if number == 0 else (parent.members[number - 1].comma or 0) + 1
        if _ends_in_line_comment(text[before:start]) and text[end : end + 1] not in {"\r", "\n"}:
            # What follows on the line would become a part of the comment.
            start = member.start
    cuts = [(start, end)]
    if member.comma is not None:
        after = member.comma + 1
        if not own_line and number == 0:
            while text[after] in " \t":
                after += 1
        cuts.append((max(end, member.comma), after))
    elif number > 0:
        comma = parent.members[number - 1].comma
        assert comma is not None
        cuts.append((comma, comma + 1))
    close = parent.end - 1
    for first, last in sorted(cuts, reverse=True):
        text = text[:first] + text[last:]
        close -= last - first
    empty = len(parent.members) == 1 and not text[parent.start + 1 : close].strip(" \t\r\n")
    if empty:
        text = text[: parent.start + 1] + text[close:]
    return text, empty


def _has_comment(text: str, path: Sequence[str], comments: bool) -> bool:
    """Whether a comment stands between the key and the value of a member that is there."""
    parent = _walk(text, path[:-1], comments)
    assert parent is not None
    member = _member(text, parent, path[-1], path[:-1])
    assert member is not None
    key = _STRING.match(text, member.start)
    assert key is not None
    return _COMMENT.search(text, key.end(), member.value.start) is not None


def _ends_in_line_comment(between: str) -> bool:
    """Whether the space and comments between two members end inside a comment that ends with its line."""
    last = ""
    for comment in _COMMENT.finditer(between):
        last = comment[0] if comment.end() == len(between) else ""
    return last.startswith("//")


def _on_own_line(text: str, member: Member) -> bool:
    """Whether nothing but space stands before the member on its line."""
    return not text[text.rfind("\n", 0, member.start) + 1 : member.start].strip(" \t")


def _indent_at(text: str, offset: int) -> str:
    """The space that the line of this offset begins with."""
    start = text.rfind("\n", 0, offset) + 1
    line = text[start:offset].removeprefix(BOM)
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """What one level is indented by: what the first indented line is."""
    found = re.search(r"\n([ \t]+)[^ \t\r\n]", text)
    return UNIT if found is None else found[1]


def _newline(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _written(text: str, value: object, indent: str, inline: bool) -> str:
    if inline:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return f"{_newline(text)}{indent}".join(lines)


def merged(
    text: str, path: Sequence[str], entry: Mapping[str, Any], gone: Sequence[str], *, comments: bool = True
) -> str:
    """The text whose object at the path has these members, has none of `gone`, and keeps the others. Raises NotJson.

    A member that is an object on both sides is merged in its turn.
    """
    there = object_at(text, path, comments=comments)
    if there is None:
        return put(text, path, entry, comments=comments)
    for key in gone:
        if key in there:
            text = drop(text, [*path, key], comments=comments)
    for key, value in entry.items():
        if isinstance(value, Mapping) and isinstance(there.get(key), dict):
            text = merged(text, [*path, key], value, (), comments=comments)
        else:
            text = put(text, [*path, key], value, comments=comments)
    return text
