"""Notices: messages that Postroom itself sends. Each says what is the case and grants nothing."""

from __future__ import annotations

import hashlib

from postroom.message import AckMode, NewMessage
from postroom.postage import MAX_METADATA_BYTES
from postroom.store.admissions import Draft
from postroom.text import dump_json, store_json

SENDER = "postroom"
"""Who notices are from."""
GRANTS_NOTHING = "This is a notice and grants nothing."


def drafted(new: NewMessage, id_: str) -> Draft:
    """A notice as it will be stored; it is known by its id alone."""
    content = [SENDER, new.to or new.channel, new.kind, new.priority.value, new.payload, id_]
    metadata = None if new.metadata is None else store_json(dict(new.metadata), "metadata", MAX_METADATA_BYTES)
    return Draft(
        id=id_,
        keys=(),
        client_id=None,
        idempotency_key=None,
        digest=hashlib.sha256(dump_json(content).encode()).hexdigest(),
        sender=SENDER,
        addressed=new.to,
        channel=new.channel,
        kind=new.kind,
        priority=new.priority,
        reply_to=None,
        payload=new.payload,
        ack_mode=new.ack_mode or AckMode.INJECTED,
        metadata=metadata,
        correlation_id=new.correlation_id,
        sender_repo=None,
        target_repo=None,
        provenance=None,
        created_by=SENDER,
        ttl=new.ttl_ms,
    )
