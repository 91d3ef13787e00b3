-- Who decides a queue's rings is alone with it until the transaction's end; SQLite has one writer anyway.
-- name: ring_lock [postgres]
select pg_advisory_xact_lock(hashtextextended(:lock_name, 0))

-- The queues that somebody listens to, and those where somebody was rung.
-- name: ring_queues
select name from attachments where what = 'queue' union select queue from rings limit :limit

-- What anybody may claim of a queue now. What falls due is made ready by the sweep, which tells of it.
-- fragment: open_to_all
from todos w where w.queue = :queue and w.state = 'pending' and w.available_at is null and w.assignee is null

-- The time; whether the queue hands nothing out, being paused or full; how many todos anybody may claim, and the first
-- of them; whether there are others that only their assignees may claim; and when one of the first came back last.
-- name: ring_work
select {now},
  exists (select 1 from queues q where q.name = :queue and (q.paused or q.max_in_flight <= (
    select count(*) from todos c where c.queue = :queue and c.state = 'claimed' and c.lease_expires_at > {now}))),
  (select count(*) from (select 1 {open_to_all} limit :most) n),
  (select w.id {open_to_all} order by {claim_order} limit 1),
  exists (select 1 from todos w where w.queue = :queue and w.state = 'pending' and w.available_at is null
    and w.assignee is not null),
  (select max(a.ended_at) from (select w.id {open_to_all} order by {claim_order} limit :window) h
    join attempts a on a.todo_id = h.id where a.outcome in ('released', 'lapsed'))

-- name: rings_of
select r.endpoint_id, r.claimed_at, r.message_id, r.rung_at, r.next_at, r.step, r.own, d.state, d.reason,
  d.lease_id is not null, d.handoff_seq is not null, d.doubtful, d.last_failure_reason
from rings r left join deliveries d on d.message_id = r.message_id
where r.queue = :queue

-- The token's part of the owner $1.
-- fragment: holder [postgres]
split_part($1, '/', 1)

-- fragment: holder [sqlite]
substr($1, 1, instr($1 || '/', '/') - 1)

-- The name under which the endpoint e claims, and that of a worker of who attached it.
-- fragment: claimant
coalesce(e.name, e.created_by)

-- fragment: claimant_worker
(e.created_by || '/' || e.name)

-- A todo c that is held now under the name of e.
-- fragment: held_by_seat
c.state || '' = 'claimed' and c.lease_expires_at > {now} and {holder:c.owner} in ({claimant}, e.created_by)
and ({holder:c.owner} = {claimant} or c.owner = {claimant_worker})

-- Work of the queue that only one name may claim, which follows.
-- fragment: own_work
from todos w where w.queue = :queue and w.state = 'pending' and w.available_at is null and w.assignee =

-- What was pushed to a channel has got there, as far as can be told, and is not on its way; nor is what waits for somebody
-- who has left that place.
-- fragment: on_its_way
(select 1 from deliveries p where p.target_key = e.target_key and p.state = 'pending' and $1
  and (p.carrier <> 'channel' or p.handoff_seq is null)
  and (p.expires_at is null or p.expires_at > {now}) and {has_its_endpoint:p} limit 1) is not null

-- fragment: its_letters
from deliveries h where h.mailbox = coalesce(e.name, e.id) and h.handoff_seq is not null order by h.handoff_seq desc

-- Whether somebody can ring at e: nobody writes to a webhook that is disabled, or whose daemon is not there.
-- fragment: within_call
({live:e} and (e.carrier <> 'webhook' or e.seen_at > {now} - cast(:silent as bigint)))

-- Each endpoint that listens to the queue: whether it is live, whether it is at work (something on its way to it or not
-- acknowledged yet, a turn that is on, a todo that it holds), when it last had anything to do, whether it holds a todo
-- of this very queue, and what waits there for it alone: how many, and the first; last the queues of the token that
-- attached it. A webhook has no work of its own, and a
-- message that it failed to take may wait for hours: it is never busy. Each is looked up row by row, so that
-- no plan reads a table whole for the sake of all seats at once.
-- name: ring_seats
select {endpoint:e}, {within_call},
  e.carrier <> 'webhook' and ({on_its_way:p.lease_id is null and p.next_attempt_at is null}
    or {on_its_way:p.lease_id is null and p.next_attempt_at is not null}
    or (select h.lease_id {leased_at:e.target_key}) is not null
    or (select max(n.ack_deadline) from (select h.state, h.ack_deadline {its_letters} limit 5) n
      where n.state = 'awaiting_ack') > {now}
    or (select g.turn_delivery from targets g where g.target_key = e.target_key) is not null
    or (select 1 from todos c where {held_by_seat} limit 1) is not null),
  {greatest}(e.created_at, coalesce((select coalesce(h.delivered_at, h.updated_at) {its_letters} limit 1), 0),
    coalesce((select max({greatest}(coalesce(r.rung_at, 0), coalesce(r.claimed_at, 0)))
      from rings r where r.endpoint_id = e.id), 0)),
  (select 1 from todos c where c.queue || '' = :queue and {held_by_seat} limit 1) is not null,
  (select count(*) from (select 1 {own_work} {claimant} limit :most) n)
    + (select count(*) from (select 1 {own_work} {claimant_worker} limit :most) n),
  coalesce((select w.id {own_work} {claimant} order by {claim_order} limit 1),
    (select w.id {own_work} {claimant_worker} order by {claim_order} limit 1)),
  (select t.queues from tokens t where t.name = e.created_by and t.revoked_at is null)
from attachments k join endpoints e on e.id = k.endpoint_id
where k.what = 'queue' and k.name = :queue and {standing:e.} and e.rings
limit :limit

-- Not rung, or rung by the message `old` -> rung by this one.
-- name: ring_set
insert into rings (queue, endpoint_id, message_id, rung_at, next_at, step, own)
values (:queue, :endpoint_id, :message_id, {now}, {now} + cast(:wait as bigint), :step, :own)
on conflict (queue, endpoint_id) do update set message_id = excluded.message_id, rung_at = excluded.rung_at,
  next_at = excluded.next_at, step = excluded.step, own = excluded.own
where coalesce(rings.message_id, '') = coalesce(cast(:old as text), '')
returning endpoint_id

-- name: ring_answer
insert into rings (queue, endpoint_id, claimed_at) values (:queue, :endpoint_id, {now})
on conflict (queue, endpoint_id) do update set message_id = null, next_at = null, step = 0, own = false,
  claimed_at = excluded.claimed_at
returning endpoint_id

-- name: ring_end
update rings set message_id = null, next_at = null, step = 0, own = false
where queue = :queue and endpoint_id {among:endpoint_ids}
returning endpoint_id

-- name: ring_forget
delete from rings where queue = :queue and endpoint_id {among:endpoint_ids} returning endpoint_id
