"""A source: one sender as it is set up here, which proves a request and reads a delivery out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from postroom.event import Incoming
from postroom.facts import NO_FACTS, Facts
from postroom.services.rules import Rule
from postroom.sources.body import Parsed, parse
from postroom.sources.headers import Headers
from postroom.sources.scheme import DEFAULT_TOLERANCE_S, Rejected, Scheme, Secret, Verified, stale
from postroom.text import cut, printable

MAX_TITLE = 500
MAX_BYTES = 5 * 1024 * 1024
"""What a delivery may weigh, and what it may inflate to, where its source says nothing else."""
MAX_WORD_BYTES = 128
MAX_ID_BYTES = 256


@dataclass(frozen=True, slots=True)
class Reading:
    """What a sender's file makes of one parsed body.

    key: the sender's own id when it stands in the body. sent_ms: when it was sent (ms UTC), where the body says so.
    ignored: why this is a handshake and no work. answer: the text that the sender wants back in a 200.
    unparsed: why the value is not what this sender sends.
    """

    kind: str
    title: str
    action: str | None = None
    facts: Facts = NO_FACTS
    key: str | None = None
    sent_ms: int | None = None
    ignored: str | None = None
    unparsed: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """A provider's contract, made for one source's options.

    id_headers: where the delivery id stands, the first that is there counts. once: other headers that may not stand
    twice with two values. form_field: the form field that holds the JSON; form_rest: other forms come too. describe:
    reads headers and value; it is called with None when the body could not be parsed, and must not raise for any value.
    tolerance_s: how far a time told in the body may lie from now. key: makes the signing key of a secret's text, where
    that is not the text itself; raises Invalid. foreign: beginnings of header names that show another provider, with
    its name.
    """

    provider: str
    scheme: Scheme
    describe: Callable[[Headers, Any], Reading]
    id_headers: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    form_field: str | None = None
    form_rest: bool = False
    tolerance_s: int = DEFAULT_TOLERANCE_S
    key: Callable[[str], bytes] | None = None
    foreign: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A sender under its name here, with its secrets and with what its deliveries lead to.

    max_bytes: what a delivery may weigh. insecure: nothing proves a delivery. local: what proves it is too little for
    strangers to be let near, so that only this machine's own programs may deliver.
    """

    name: str
    sender: Sender
    secrets: tuple[Secret, ...] = field(default=(), repr=False)
    queue: str | None = None
    rules: tuple[Rule, ...] = ()
    ignore_authors: tuple[str, ...] = ()
    insecure: bool = False
    local: bool = False
    max_bytes: int = MAX_BYTES

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self.sender.provider

    def receive(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        now_ms: int,
        query: bytes = b"",
        *,
        signed: bytes | None = None,
    ) -> Incoming | Rejected:
        """Raw request -> a delivery, when it proves genuine and fresh. Never raises for anything a sender can send.

        signed: the bytes that the proof is over, where they are not the body's own: it may have been packed.
        """
        lines = Headers(headers, query)
        proof = self.verify(lines, body if signed is None else signed, now_ms)
        if isinstance(proof, Rejected):
            return proof
        parsed, reading = self._look(lines, body)
        if reading.sent_ms is not None and proof.sealed:
            late = stale(reading.sent_ms, "the time in the body", self.sender.tolerance_s, now_ms)
            if late is not None:
                return late
        return self._delivery(lines, body, proof, parsed, reading)

    def verify(self, headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Prove the raw bytes before anything is read from them; now_ms is UTC."""
        for prefix, provider in self.sender.foreign:
            if headers.has_prefix(prefix):
                return Rejected(
                    f'its {prefix}* headers are of {provider}: expected a source of provider = "{provider}"'
                )
        for name in (*self.sender.id_headers, *self.sender.once):
            if headers.conflicting(name):
                return Rejected(f"several {name} headers that differ")
        return self.sender.scheme.verify(self.secrets, headers, body, now_ms)

    def read(self, headers: Headers, body: bytes, proof: Verified) -> Incoming:
        """A proved request -> a delivery, however long ago it was sent; an unreadable body gives one that says why."""
        return self._delivery(headers, body, proof, *self._look(headers, body))

    def _look(self, headers: Headers, body: bytes) -> tuple[Parsed, Reading]:
        parsed = parse(headers, body, self.sender.form_field, form_rest=self.sender.form_rest)
        return parsed, self.sender.describe(headers, parsed.data)

    def _delivery(self, headers: Headers, body: bytes, proof: Verified, parsed: Parsed, reading: Reading) -> Incoming:
        digest = hashlib.sha256(body).hexdigest()
        unparsed = parsed.unparsed or reading.unparsed
        key, signed = self._keyed(headers, digest, proof, reading)
        return Incoming(
            source=self.name,
            provider=self.provider,
            delivery_key=key,
            kind=cut(printable(reading.kind), MAX_WORD_BYTES) or "unknown",
            action=cut(printable(reading.action), MAX_WORD_BYTES) if reading.action else None,
            title=printable(reading.title)[:MAX_TITLE] or self.name,
            verification=f"{proof.how}:{proof.label}" if proof.how != "none" else "none",
            body=body,
            headers=headers.shown(self.sender.scheme.names, [secret.value for secret in self.secrets]),
            body_json=None if unparsed else parsed.text,
            digest=digest,
            unparsed=unparsed,
            ignored=None if unparsed else reading.ignored,
            facts=reading.facts,
            answer=None if unparsed else reading.answer,
            signed_key=signed,
        )

    def _keyed(self, headers: Headers, digest: str, proof: Verified, reading: Reading) -> tuple[str, bool]:
        """The key, and whether only the sender can have given it.

        It is the signed id, else the id in the body, else the id header, else the body's digest with the proof's stamp:
        a digest alone would take two equal events for one for as long as the first is kept.
        """
        if proof.id:
            return _key(proof.id), True
        if reading.key:
            return _key(reading.key), proof.sealed
        return self._id(headers) or f"sha256:{digest}@{proof.stamp}", proof.timed and self._id(headers) is None

    def _id(self, headers: Headers) -> str | None:
        for name in self.sender.id_headers:
            values = headers.all(name)
            if values and values[0]:
                return _key(values[0].decode("latin-1"))
        return None


def _key(value: str) -> str:
    """An id as a key: clean, at most 256 bytes, and still apart from every other id that looks like it then."""
    plain = cut(printable(value), MAX_ID_BYTES)
    if plain == value:
        return plain
    return f"{cut(plain, MAX_ID_BYTES - 65)}~{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"
