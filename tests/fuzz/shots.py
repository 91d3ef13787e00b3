"""What is posted: real deliveries of every provider, bent in their JSON, headers, coding and address, signed or forged."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz.places import SOURCES, proof, samples

Line = tuple[bytes, bytes]

NAMES: Final = tuple(SOURCES)


@dataclass(frozen=True)
class Shot:
    """A request that HTTP allows, however odd it is."""

    source: str
    method: bytes
    target: bytes
    lines: list[Line]
    body: bytes = field(repr=False)
    pieces: int = 0
    """0: with a length; else in so many chunks."""


# Values that something, somewhere, fell over.

TEXTS: Final = (
    "", " ", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "\ufeff", "é", "👋" * 50, "x" * 7_000, "{title}", "{", "}}{{",
    "%s%n", "../../etc/passwd", "<script>", "'; drop table events; --", "\u202e\u2066", "\r\nX: y", "[a", "*?[", "\\", "@",
    "@" * 500, "ev_", "td_x", "NaN", "1e999", "null", "refs/heads/\x1b[31m", "-1", "9" * 300,
)  # fmt: skip
NUMBERS: Final = (0, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**390, 1.5, -0.0, 1e308, 5e-324)
BODIES: Final = (
    b"", b" ", b"{}", b"[]", b"null", b"0", b'""', b"\xef\xbb\xbf{}", b"{", b'{"a":', b"\x00", b"\xff\xfe{\x00}\x00",
    b'{"a":NaN}', b'{"a":Infinity}', b'{"a":1e999}', b'{"a":1,"a":2}', b"[" * 7_000, b'{"a":' * 7_000, b'"' * 7_000,
    b'{"a":"\\ud800\\u0000"}', b"9" * 5000, b"payload=", b"payload=%7B%7D", b"payload=%FF", b"a=1&a=2", b"&&&===", b"%",
    b"payload=" + b"%5B" * 7_000, b"a=1&" * 2000, b"\\" * 5000, b'{"\\ud800":1}', b"{}{}", b"true false",
)  # fmt: skip
MEDIA: Final = (
    "application/json", "application/json; charset=utf-16", "application/json;charset=klingon", "text/plain", "", "\xff",
    "application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=x", "multipart/form-data; boundary=",
    ";;;", "APPLICATION/JSON", "x" * 9000,
)  # fmt: skip
BOMB: Final = gzip.compress(b"\0" * 6_000_000, mtime=0)
HEADER_VALUES: Final = (
    b"", b" ", b"\xff" * 40, "é漢👋".encode(), b"x" * 9000, b"=", b",", b"v1,", b"v1=", b"t=1,v1=", b"sha256=",
    b"0", b"-1", b"9" * 400, b"1e9", b"NaN", b"%00", b"Bearer", b"Bearer ", b"Basic AAAA", b"{}", b"\x7f", b"a, b", b'"',
    b"sha256=" + b"0" * 64, b"v0=" + b"f" * 64, b"v1,AAAA v1,BBBB", b"v1,a,b", b"t=,t=,v1=,v1=",
)  # fmt: skip
ODD_NAMES: Final = (
    "x-hub-signature", "x-hub-signature-256", "x-gitea-event", "x-forgejo-event", "x-gitlab-token", "webhook-signature",
    "svix-signature", "svix-id", "svix-timestamp", "authorization", "cookie", "idempotency-key", "content-encoding", "host",
    "origin", "x-forwarded-for", "x-event", "x" * 300, "transfer-encoding-", "expect-", "x-github-event", "linear-event",
    "sentry-hook-resource", "x-slack-retry-num", "content-type",
)  # fmt: skip

_TOKENS: Final = (
    *(text.encode("utf-8", "surrogatepass") for text in TEXTS if len(text) < 100),
    b"null", b"{", b"[", b"}", b"]", b'"', b":", b",", b"\\u0000", b"\\ud83d", b"1e400", b"-", b"true", b"&", b"=", b"%zz",
)  # fmt: skip
_VISIBLE: Final = bytes(range(32, 127)) + bytes(range(128, 256)) + b"\t"

_SCALARS = st.one_of(
    st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.integers(), st.text(max_size=20)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)


def encode(value: Any) -> bytes:
    """JSON as a careless sender would write it: lone surrogates escaped, no cleaning."""
    return json.dumps(value, allow_nan=True).encode()


@st.composite
def bent(draw: st.DrawFn, value: Any) -> Any:
    """A sample's value with a few of its places changed, taken away or filled with something else."""
    made = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 4))):
        node: Any = made
        while True:
            keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = node[key]
            if isinstance(inner, dict | list) and inner and draw(st.booleans()):
                node = inner
                continue
            match draw(st.integers(0, 3)):
                case 0:
                    del node[key]
                case 1 if isinstance(node, dict):
                    node[draw(st.sampled_from(TEXTS[:12]))] = node.pop(key)
                case 2:
                    node[key] = [inner] * draw(st.integers(0, 3))
                case _:
                    node[key] = draw(_VALUES)
            break
    return made


@st.composite
def bodies(draw: st.DrawFn, source: str, now_ms: int, id_: str) -> tuple[list[tuple[str, str]], bytes]:
    """The headers that tell the kind, and a body: a sample, a bent one, or something else."""
    made = draw(st.sampled_from(samples(source, now_ms)))
    headers, body = [(key, id_ if value == "d-0" else value) for key, value in made.headers], made.body
    match draw(st.integers(0, 9)):
        case 0 | 1:
            return headers, body
        case 2:
            return headers, draw(st.sampled_from(BODIES))
        case 3:
            return headers, draw(st.binary(max_size=300))
        case 4:
            return headers, encode(draw(_VALUES))
        case _:
            try:
                value = json.loads(body)
            except ValueError:
                return headers, body[draw(st.integers(0, len(body))) :]
            return headers, encode(draw(bent(value)))


@st.composite
def shots(draw: st.DrawFn, now_ms: int) -> Shot:
    """A whole request."""
    name = draw(st.sampled_from(NAMES))
    id_ = f"d-{draw(st.integers(0, 10**9))}"
    headers, body = draw(bodies(name, now_ms, id_))
    return draw(dressed(name, now_ms, id_, headers, body))


@st.composite
def dressed(draw: st.DrawFn, name: str, now_ms: int, id_: str, headers: list[tuple[str, str]], body: bytes) -> Shot:
    """A body with its headers: packed perhaps, signed over one form or the other, and then bent."""
    coding, sent = draw(packed(body))
    over = sent if draw(st.integers(0, 4)) == 0 else body
    signing = proof(SOURCES[name], over, now_ms - draw(st.sampled_from([0, 0, 0, 299_000, 301_000])), id_)
    told = dict(headers) | dict(signing.headers)
    if draw(st.integers(0, 3)) == 0:
        told["content-type"] = draw(st.sampled_from(MEDIA))
    if coding:
        told["content-encoding"] = coding
    told.setdefault("host", "127.0.0.1")
    lines = [(key.encode(), value.encode("latin-1", "replace")) for key, value in told.items()]
    if draw(st.integers(0, 2)) == 0:
        lines = draw(bent_lines(lines))
    if draw(st.integers(0, 9)) == 0 and sent:
        place = draw(st.integers(0, len(sent) - 1))
        sent = sent[:place] + bytes([sent[place] ^ draw(st.integers(1, 255))]) + sent[place + 1 :]
    target = f"/hooks/{name}".encode() + (b"?" + signing.query.encode() if signing.query else b"")
    if draw(st.integers(0, 19)) == 0:
        target += draw(
            st.sampled_from([b"/", b"?", b"?t=", b"?t=%FF&t=%00", b"?" + b"a&" * 300, b"%00", b"/../x", b"%2F"])
        )
    method = (
        b"POST" if draw(st.integers(0, 29)) else draw(st.sampled_from([b"GET", b"HEAD", b"PUT", b"OPTIONS", b"BREW"]))
    )
    return Shot(name, method, target, lines, sent, draw(st.sampled_from([0, 0, 0, 1, 3])))


def twin(shot: Shot, dice: random.Random, now_ms: int) -> Shot:
    """Another shot, made from this one by chance alone, which is quick: its bytes changed, and mostly signed anew."""
    body = bytearray(shot.body)
    for _ in range(dice.randrange(4)):
        place = dice.randrange(len(body) + 1)
        match dice.randrange(4):
            case 0:
                body[place : place + dice.randrange(12)] = b""
            case 1:
                body[place:place] = dice.choice(_TOKENS)
            case 2:
                body[place : place + 1] = dice.randbytes(1)
            case _:
                body[place:place] = body[max(place - dice.randrange(40), 0) : place]
    lines, target = list(shot.lines), shot.target
    if dice.randrange(4):
        id_ = f"d-{dice.randrange(10**9)}"
        source = SOURCES[shot.source]
        signing = proof(source, bytes(body), now_ms, id_)
        told = dict.fromkeys(source.sender.id_headers[:1], id_) | dict(signing.headers)
        lines = [line for line in lines if line[0].decode() not in told]
        lines += [(key.encode(), value.encode()) for key, value in told.items()]
        target = f"/hooks/{shot.source}?{signing.query}".encode()
    for _ in range(dice.randrange(3) if lines else 0):
        place = dice.randrange(len(lines))
        name, value = lines[place]
        changed = bytearray(dice.choice([value, dice.choice(HEADER_VALUES), value + value]))
        if changed:
            changed[dice.randrange(len(changed))] = dice.choice(_VISIBLE)
        lines[place] = (name, bytes(changed))
    return Shot(shot.source, b"POST", target, lines, bytes(body), dice.choice([0, 0, 1, 4]))


@st.composite
def packed(draw: st.DrawFn, body: bytes) -> tuple[str, bytes]:
    """A Content-Encoding and the bytes under it; mostly none."""
    match draw(st.integers(0, 19)):
        case 0 | 1:
            return draw(st.sampled_from(["gzip", "x-gzip", "GZIP", "identity, gzip"])), gzip.compress(body, mtime=0)
        case 2:
            return "gzip", body
        case 3:
            whole = gzip.compress(body, mtime=0)
            return "gzip", whole[: draw(st.integers(0, len(whole) - 1))]
        case 4:
            return "gzip", BOMB
        case 5:
            return draw(st.sampled_from(["deflate", "br", "gzip, gzip", "", ",,", "x", "\xff"])), zlib.compress(body)
        case _:
            return "", body


@st.composite
def bent_lines(draw: st.DrawFn, lines: list[Line]) -> list[Line]:
    """Header lines with some taken away, doubled, changed, put in another order, or added."""
    made = list(lines)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(made) - 1)) if made else 0
        value = draw(st.one_of(st.sampled_from(HEADER_VALUES), st.binary(max_size=30).map(_allowed)))
        match draw(st.integers(0, 4)):
            case 0 if made:
                del made[place]
            case 1 if made:
                made[place] = (made[place][0], value)
            case 2 if made:
                made.append(draw(st.sampled_from([made[place], (made[place][0].upper(), value)])))
            case 3:
                made = draw(st.permutations(made))
            case _:
                made.append((draw(st.sampled_from(ODD_NAMES)).encode(), value))
    return made


def _allowed(value: bytes) -> bytes:
    """A header's value without what would end its line."""
    return value.replace(b"\r", b"?").replace(b"\n", b"?").replace(b"\0", b"?")
