"""`postroom todo`: every verb of a todo's life, as one command each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroom.doors.cli.asking import (
    AsJson,
    Cursor,
    Data,
    Limit,
    RequestId,
    Ttl,
    asking,
    given,
    read_json,
    usage,
)
from postroom.doors.cli.pane import worker_here
from postroom.doors.cli.plain import Verbs, seconds
from postroom.doors.cli.queue import unseen
from postroom.doors.cli.table import note, tell
from postroom.doors.cli.todo_shown import show_claimed, show_created, show_line, show_list, show_whole
from postroom.errors import Conflict

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

app = Verbs("Create, claim and end todos.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The todo's whole id, td_...")]
Lease = Annotated[
    str | None, typer.Option("--lease", metavar="LEASE", help="The claim's lease id; read from the todo when left out.")
]
Worker = Annotated[
    str | None,
    typer.Option("--worker", metavar="NAME", help="Claim as NAME of your token, token/NAME; else this pane's name."),
]
ClaimKey = Annotated[
    str | None, typer.Option("--claim-key", metavar="KEY", help="The same key again gives the same claim.")
]
Payload = Annotated[
    str | None, typer.Option("--payload", metavar="JSON|@FILE|-", help="JSON, a file that holds it, or - for stdin.")
]
Result = Annotated[
    str | None, typer.Option("--result", metavar="JSON|@FILE|-", help="JSON, a file that holds it, or - for stdin.")
]
Priority = Annotated[int | None, typer.Option("--priority", metavar="N", help="-100 to 100, higher is claimed first.")]
At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="Not claimable before, as 2026-01-31T12:00:00.000Z.")
]
State = Literal["pending", "claimed", "done", "failed", "parked", "dead", "cancelled"]


@app.command("add")
def add(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue it waits in.")],
    title: Annotated[str, typer.Argument(metavar="TITLE", help="One line that says what is to be done.")],
    payload: Payload = None,
    kind: Annotated[str | None, typer.Option("--kind", help="What sort of work it is.")] = None,
    priority: Priority = None,
    assignee: Annotated[
        str | None,
        typer.Option("--for", "--assignee", metavar="NAME", help="Who alone may claim it, and is told that it waits."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "--idempotency-key", metavar="KEY", help="At most one live todo for each queue and key."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="Attempts before it is a dead letter; 1 to 100.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option("--delay", parser=seconds, metavar="DURATION", help="Not claimable before that.")
    ] = None,
    at: At = None,
    request_id: RequestId = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Create a todo, or find the live one of the same key."""
    body = given(
        queue=queue,
        title=title,
        kind=kind,
        priority=priority,
        assignee=assignee,
        idempotency_key=key,
        max_attempts=max_attempts,
        delay_s=delay,
        available_at=at,
    )
    if payload is not None:
        body["payload"] = read_json(payload, "--payload")
    with asking(as_json, data) as daemon:
        body |= given(worker=worker_here(daemon, os.environ))
        answer = daemon.ask("POST", "/v1/todos", body, request_id=request_id)
    tell(answer, as_json, show_created)


@app.command("list")
def list_todos(
    queue: Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Only of this queue.")] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only in this state.")] = None,
    assignee: Annotated[str | None, typer.Option("--assignee", metavar="NAME", help="Only assigned to NAME.")] = None,
    cursor: Cursor = None,
    limit: Limit = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List todos, newest first, without their payloads."""
    query = given(queue=queue, state=state, assignee=assignee, cursor=cursor, limit=limit)
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/todos", query=query)
        remarks = unseen(daemon, [queue]) if queue and not answer["todos"] else []
    tell(answer, as_json, show_list)
    for said in remarks:
        note(said)


@app.command("show")
def show(id: Id, as_json: AsJson = False, data: Data = None) -> None:
    """Show a todo whole: where it stands, payload, result and earlier attempts."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", _path(id))
    tell(answer, as_json, show_whole)


@app.command("next")
def claim_next(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="Queues to claim from; all you may use by default.")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option("--wait", parser=seconds, metavar="DURATION", help="Wait for work that long; 50 s at most."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Claim up to N; 1 by default.")] = None,
    ttl: Ttl = None,
    worker: Worker = None,
    claim_key: ClaimKey = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Claim the next todo of the queues; nothing there is no error."""
    from postroom.doors.cli.waiting import wait_for

    if wait and claim_key is None:
        # A claim whose answer is lost when the daemon goes away is given again to whoever asks by its key.
        claim_key = os.urandom(12).hex()
    body = given(queues=queues or None, limit=limit, ttl_s=ttl, claim_key=claim_key)
    with asking(as_json, data) as daemon:
        body |= given(worker=worker or worker_here(daemon, os.environ))

        def ask(wait_s: float) -> dict[str, Any]:
            return daemon.ask("POST", "/v1/todos/claim", body | given(wait_s=wait_s or None), wait_s=wait_s)

        answer = wait_for(ask, lambda answer: answer["todos"], wait or 0.0)
        remarks = unseen(daemon, queues) if queues and not answer["todos"] else []
    tell(answer, as_json, show_claimed)
    for said in remarks:
        note(said)


@app.command("claim")
def claim(
    id: Id,
    ttl: Ttl = None,
    worker: Worker = None,
    claim_key: ClaimKey = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Claim one todo under a lease."""
    with asking(as_json, data) as daemon:
        body = given(ttl_s=ttl, worker=worker or worker_here(daemon, os.environ), claim_key=claim_key)
        answer = daemon.ask("POST", _path(id, "claim"), body)
    tell(answer, as_json, show_whole)


@app.command("heartbeat")
def heartbeat(
    id: Id,
    lease: Lease = None,
    ttl: Ttl = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Hold a claim for longer."""
    with asking(as_json, data) as daemon:
        body = given(lease_id=lease or _lease_of(daemon, id), ttl_s=ttl)
        answer = daemon.ask("POST", _path(id, "heartbeat"), body)
    tell(answer, as_json, show_line)


@app.command("complete")
def complete(
    id: Id,
    lease: Lease = None,
    result: Result = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """End a claim: the work is done."""
    body = {} if result is None else {"result": read_json(result, "--result")}
    _end("complete", id, lease, body, as_json, data)


@app.command("fail")
def fail(
    id: Id,
    lease: Lease = None,
    error: Annotated[str | None, typer.Option("--error", metavar="TEXT", help="What went wrong.")] = None,
    result: Result = None,
    no_retry: Annotated[bool, typer.Option("--no-retry", help="Give up: a dead letter at once.")] = False,
    retry_in: Annotated[
        float | None,
        typer.Option("--retry-in", parser=seconds, metavar="DURATION", help="Try again after that, not the backoff."),
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """End a claim: the attempt failed, and is tried again while attempts are left."""
    if no_retry and retry_in is not None:
        raise usage("give --no-retry or --retry-in, not both", "--no-retry")
    body = given(error=error, retry=False if no_retry else None, retry_in_s=retry_in)
    if result is not None:
        body["result"] = read_json(result, "--result")
    _end("fail", id, lease, body, as_json, data)


@app.command("release")
def release(
    id: Id,
    lease: Lease = None,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="What the next claimer should know.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option("--delay", parser=seconds, metavar="DURATION", help="Not claimable before that.")
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Give a claim back; the attempt does not count."""
    _end("release", id, lease, given(note=note, delay_s=delay), as_json, data)


@app.command("retry")
def retry(id: Id, request_id: RequestId = None, as_json: AsJson = False, data: Data = None) -> None:
    """Put a failed todo back to pending with its attempts anew."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", _path(id, "retry"), {}, request_id=request_id)
    tell(answer, as_json, show_line)


@app.command("cancel")
def cancel(
    id: Id,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the history.")] = None,
    request_id: RequestId = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """End a live todo for good, whoever holds it."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", _path(id, "cancel"), given(reason=reason), request_id=request_id)
    tell(answer, as_json, show_line)


@app.command("assign")
def assign(
    id: Id,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Who alone may claim it from now on: a token's name.")
    ] = None,
    nobody: Annotated[bool, typer.Option("--nobody", help="Instead: anyone may claim it.")] = False,
    request_id: RequestId = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Give a pending todo to somebody, who is told that it waits; for its creator and admins."""
    if (name is None) != nobody:
        raise usage("give NAME or --nobody, one of them", "NAME")
    with asking(as_json, data) as daemon:
        answer = daemon.ask("PATCH", _path(id), {"assignee": name}, request_id=request_id)
    tell(answer, as_json, show_line)


@app.command("update")
def update(
    id: Id,
    title: Annotated[str | None, typer.Option("--title", help="A new title.")] = None,
    payload: Payload = None,
    priority: Priority = None,
    assignee: Annotated[str | None, typer.Option("--assignee", metavar="NAME", help="Who alone may claim it.")] = None,
    unassign: Annotated[bool, typer.Option("--unassign", help="Anyone may claim it.")] = False,
    at: At = None,
    now: Annotated[bool, typer.Option("--now", help="Claimable at once.")] = False,
    request_id: RequestId = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Change a pending todo."""
    if assignee is not None and unassign:
        raise usage("give --assignee or --unassign, not both", "--unassign")
    if at is not None and now:
        raise usage("give --at or --now, not both", "--now")
    body = given(title=title, priority=priority, assignee=assignee, available_at=at)
    if unassign:
        body["assignee"] = None
    if now:
        body["available_at"] = None
    if payload is not None:
        body["payload"] = read_json(payload, "--payload")
    if not body:
        raise usage("name what is to change: --title, --payload, --priority, --assignee, --unassign, --at or --now")
    with asking(as_json, data) as daemon:
        answer = daemon.ask("PATCH", _path(id), body, request_id=request_id)
    tell(answer, as_json, show_line)


def _end(verb: str, id: str, lease: str | None, body: dict[str, object], as_json: bool, data: Data) -> None:
    with asking(as_json, data) as daemon:
        body["lease_id"] = lease or _lease_of(daemon, id)
        answer = daemon.ask("POST", _path(id, verb), body)
    tell(answer, as_json, show_line)


def _lease_of(daemon: Daemon, id: str) -> str:
    """The lease under which this token holds the todo. Raises Conflict when it does not."""
    todo = daemon.ask("GET", _path(id))["todo"]
    lease = todo.get("lease_id")
    if lease:
        return str(lease)
    raise Conflict(
        f"{id} is {todo['state']} and not held by you",
        state=todo["state"],
        owner=todo.get("owner"),
        lease_expires_at=todo.get("lease_expires_at"),
    )


def _path(id: str, verb: str | None = None) -> str:
    from postroom.doors.cli.connection import segment

    if not id:
        raise usage("an empty id names nothing; expected td_<uuid>", "ID")
    return f"/v1/todos/{segment(id)}" + (f"/{verb}" if verb else "")
