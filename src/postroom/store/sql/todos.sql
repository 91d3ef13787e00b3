-- fragment: todo_head
seq, id, queue, source, kind, title, event_id, idempotency_key, assignee, state, owner, lease_id, lease_expires_at,
claim_key, attempt, max_attempts, priority, available_at, next_retry_at, reason, error, created_by, created_at,
updated_at, claimed_at, completed_at

-- fragment: todo
{todo_head}, coalesce(octet_length(payload), 0) as payload_bytes, payload, result

-- fragment: todo_line
{todo_head}, coalesce(octet_length(payload), 0) as payload_bytes, null as payload, null as result

-- The newest 50 ended attempts of the todo $1, as JSON, newest first.
-- fragment: history [postgres]
(select json_agg(json_build_array(h.owner, h.claimed_at, h.ended_at, h.outcome, h.note) order by h.ended_at desc, h.claimed_at desc nulls first)
  from (select * from attempts where todo_id = $1 order by ended_at desc, claimed_at desc nulls first limit 50) h)

-- fragment: history [sqlite]
(select nullif(json_group_array(json_array(h.owner, h.claimed_at, h.ended_at, h.outcome, h.note) order by h.ended_at desc, h.claimed_at desc nulls first), '[]')
  from (select * from attempts where todo_id = $1 order by ended_at desc, claimed_at desc nulls first limit 50) h)

-- fragment: keyed
idempotency_key is not null and state <> 'done' and not (state = 'failed' and next_retry_at is null)

-- Written so that no partial index over the claimed rows fits: the row is found by its id, whatever stale statistics say
-- of how few are claimed. No state is ever ''.
-- fragment: is_claimed
$1 in ('claimed', '')

-- fragment: owned
(owner = :owner or substr(owner, 1, length(cast(:owner as text)) + 1) = cast(:owner as text) || '/')

-- fragment: made
(created_by = :creator or substr(created_by, 1, length(cast(:creator as text)) + 1) = cast(:creator as text) || '/')

-- fragment: holds
{is_claimed:state} and {owned}

-- name: todo_insert
insert into todos (id, queue, source, kind, title, event_id, idempotency_key, assignee, max_attempts, priority,
  available_at, created_by, created_at, updated_at, payload)
values (:id, :queue, :source, :kind, :title, :event_id, :idempotency_key, :assignee, coalesce(cast(:max_attempts as integer), (select q.max_attempts from queues q where q.name = :queue), 5),
  :priority,
  case when coalesce(cast(:available_at as bigint), {now} + cast(:delay as bigint)) > {now}
    then coalesce(cast(:available_at as bigint), {now} + cast(:delay as bigint)) end,
  :created_by, {now}, {now}, :payload)
on conflict (queue, idempotency_key) where {keyed} do nothing
returning {todo}

-- A whole batch in one statement. The numbers are taken in the order of the input, the rows are inserted in the order
-- of their keys: two batches with the same keys in opposite orders would else wait for each other. SQLite has one
-- writer and no arrays, and inserts the rows of a batch one by one in one transaction.
-- name: todo_insert_many [postgres]
with asked as (
  select a.*, nextval(pg_get_serial_sequence('todos', 'seq')) as seq
  from rows from (json_to_recordset(cast(:items as json)) as (id text, queue text, source text, kind text, title text,
    event_id text, idempotency_key text, assignee text, max_attempts integer, priority integer, available_at bigint,
    delay bigint, payload text)) with ordinality
    as a(id, queue, source, kind, title, event_id, idempotency_key, assignee, max_attempts, priority, available_at,
      delay, payload, n)
)
insert into todos (seq, id, queue, source, kind, title, event_id, idempotency_key, assignee, max_attempts, priority,
  available_at, created_by, created_at, updated_at, payload)
select a.seq, a.id, a.queue, a.source, a.kind, a.title, a.event_id, a.idempotency_key, a.assignee,
  coalesce(a.max_attempts, q.max_attempts, 5), a.priority,
  case when coalesce(a.available_at, {now} + a.delay) > {now} then coalesce(a.available_at, {now} + a.delay) end,
  :created_by, {now}, {now}, a.payload
from asked a left join queues q on q.name = a.queue
order by a.queue, a.idempotency_key, a.n
on conflict (queue, idempotency_key) where {keyed} do nothing
returning {todo}

-- name: todo_by_key
select {todo} from todos where queue = :queue and idempotency_key = :idempotency_key and {keyed}

-- name: todo_get
select {todo}, {history:todos.id} from todos where id = :id

-- name: todo_whole
select {todo} from todos where id {among:ids}

-- name: todo_list
select {todo_line} from todos where 1 = 1
[queue] and queue = :queue
[queues] and queue {among:queues}
[state] and state = :state
[parked] and state = 'failed' and next_retry_at is not null
[dead] and state = 'failed' and next_retry_at is null and reason <> 'cancelled'
[cancelled] and state = 'failed' and next_retry_at is null and reason = 'cancelled'
[assignee] and assignee = :assignee
[before] and seq < :before
order by seq desc limit :limit

-- name: todo_heartbeat
update todos set
  lease_expires_at = {greatest}(lease_expires_at, {now} + coalesce(cast(:ttl as bigint),
    (select q.lease_ms from queues q where q.name = todos.queue), 300000)),
  updated_at = {now}
where id = :id and {holds}
[lease_id] and lease_id = :lease_id
returning {todo}

-- name: todo_complete
update todos set state = 'done', result = :result, lease_expires_at = null, claim_key = null, error = null,
  completed_at = {now}, updated_at = {now}
where id = :id and {holds}
[lease_id] and lease_id = :lease_id
returning {todo}

-- Ends attempts by complete, fail or release, many at once: `items` is a JSON array of objects. Rows are
-- locked in the order of their ids, so that two flushes never wait for each other in a circle.
-- name: todo_end_many [postgres]
with asked as materialized (
  select * from json_to_recordset(cast(:items as json)) as a(id text, lease_id text, verb text, result text, note text,
    retry boolean, delay bigint, jitter float8)
), held as materialized (
  select t.id, t.owner, t.claimed_at, t.lease_id, a.verb, a.result, a.note, a.delay, a.jitter, t.queue,
    case when a.verb = 'fail' and (not a.retry or t.attempt >= t.max_attempts) then 1 else 0 end as final, a.retry
  from todos t join asked a on a.id = t.id
  where t.id = any(array(select id from asked))
    and {is_claimed:t.state} and (a.lease_id is null or t.lease_id = a.lease_id)
    and (t.owner = :owner or substr(t.owner, 1, length(cast(:owner as text)) + 1) = cast(:owner as text) || '/')
  order by t.id for update of t
), noted as (
  insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome, note)
  select id, lease_id, owner, claimed_at, {now}, case verb when 'fail' then 'failed' else 'released' end, note
  from held where verb <> 'complete'
  on conflict do nothing
)
update todos t set
  state = case h.verb when 'complete' then 'done' when 'fail' then 'failed' else 'pending' end,
  result = case h.verb when 'release' then t.result else h.result end,
  error = case h.verb when 'complete' then null when 'fail' then h.note else t.error end,
  owner = case h.verb when 'complete' then t.owner end,
  lease_id = case h.verb when 'complete' then t.lease_id end,
  claimed_at = case h.verb when 'complete' then t.claimed_at end,
  lease_expires_at = null, claim_key = null,
  attempt = case h.verb when 'release' then greatest(t.attempt - 1, 0) else t.attempt end,
  available_at = case when h.verb = 'release' and h.delay > 0 then {now} + h.delay end,
  next_retry_at = case when h.verb = 'fail' and h.final = 0 then {now} + coalesce(h.delay, {backoff:h.jitter}) end,
  reason = case when h.final = 1 then case when h.retry then 'exhausted' else 'refused' end end,
  completed_at = case when h.verb = 'complete' or h.final = 1 then {now} end,
  updated_at = {now}
from held h where t.id = h.id
[whole] returning {todo_returning}
[brief] returning t.id, t.queue, t.state

-- PostgreSQL's UPDATE ... FROM makes bare column names ambiguous.
-- fragment: todo_returning [postgres]
t.seq, t.id, t.queue, t.source, t.kind, t.title, t.event_id, t.idempotency_key, t.assignee, t.state, t.owner,
t.lease_id, t.lease_expires_at, t.claim_key, t.attempt, t.max_attempts, t.priority, t.available_at, t.next_retry_at,
t.reason, t.error, t.created_by, t.created_at, t.updated_at, t.claimed_at, t.completed_at,
coalesce(octet_length(t.payload), 0), t.payload, t.result

-- Base doubling with each attempt up to the cap, and jitter; $1 is the jitter's name (lifecycle.backoff).
-- fragment: backoff [postgres]
(select b.delay + cast(floor(b.delay * $1) as bigint) from (select least(
  coalesce((select q.backoff_cap_ms from queues q where q.name = t.queue), 900000),
  coalesce((select q.backoff_ms from queues q where q.name = t.queue), 30000) << least(greatest(t.attempt, 1) - 1, 20)
) as delay) b)

-- fragment: backoff [sqlite]
(select b.delay + cast(b.delay * $1 as integer) from (select min(
  coalesce((select q.backoff_cap_ms from queues q where q.name = todos.queue), 900000),
  coalesce((select q.backoff_ms from queues q where q.name = todos.queue), 30000) << min(max(todos.attempt, 1) - 1, 20)
) as delay) b)

-- Many completes at once, the common case of a flush: `items` is a JSON array of [id, lease id, result], on PostgreSQL
-- of objects. There the rows are locked in the order of their ids.
-- name: todo_complete_many [postgres]
with asked as materialized (
  select * from json_to_recordset(cast(:items as json)) as a(id text, lease_id text, result text)
), held as materialized (
  select t.id, a.result from todos t join asked a on a.id = t.id
  where t.id = any(array(select id from asked))
    and {is_claimed:t.state} and (a.lease_id is null or t.lease_id = a.lease_id)
    and (t.owner = :owner or substr(t.owner, 1, length(cast(:owner as text)) + 1) = cast(:owner as text) || '/')
  order by t.id for update of t
)
update todos t set state = 'done', result = h.result, lease_expires_at = null, claim_key = null, error = null,
  completed_at = {now}, updated_at = {now}
from held h where t.id = h.id
returning t.id, t.queue, t.state

-- name: todo_complete_many [sqlite]
update todos set state = 'done', result = i.value ->> 2, lease_expires_at = null, claim_key = null, error = null,
  completed_at = :now, updated_at = :now
from json_each(:items) i
where todos.id = i.value ->> 0 and {holds} and (i.value ->> 1 is null or lease_id = i.value ->> 1)
returning todos.id, todos.queue, todos.state

-- SQLite ends by fail and release one attempt a call: they have two steps, and another statement costs no round trip.
-- name: todo_end [sqlite]
insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome, note)
select id, lease_id, owner, claimed_at, :now, case :verb when 'fail' then 'failed' else 'released' end, :note
from todos where id = :id and :verb <> 'complete' and {holds}
[lease_id] and lease_id = :lease_id
on conflict do nothing;
update todos set
  state = case :verb when 'complete' then 'done' when 'fail' then 'failed' else 'pending' end,
  result = case :verb when 'release' then result else :result end,
  error = case :verb when 'complete' then null when 'fail' then :note else error end,
  owner = case :verb when 'complete' then owner end,
  lease_id = case :verb when 'complete' then lease_id end,
  claimed_at = case :verb when 'complete' then claimed_at end,
  lease_expires_at = null, claim_key = null,
  attempt = case :verb when 'release' then max(attempt - 1, 0) else attempt end,
  available_at = case when :verb = 'release' and :delay > 0 then :now + :delay end,
  next_retry_at = case when :verb = 'fail' and :retry and attempt < max_attempts
    then :now + coalesce(:delay, {backoff::jitter}) end,
  reason = case when :verb = 'fail' and not :retry then 'refused'
    when :verb = 'fail' and attempt >= max_attempts then 'exhausted' end,
  completed_at = case when :verb = 'complete' or (:verb = 'fail' and (not :retry or attempt >= max_attempts))
    then :now end,
  updated_at = :now
where id = :id and {holds}
[lease_id] and lease_id = :lease_id
[whole] returning {todo}
[brief] returning id, queue, state

-- How the lease ids of these todos ended, to tell a repeated request from a stale one.
-- name: attempt_outcomes
select todo_id, lease_id, owner, outcome from attempts where todo_id {among:ids} and lease_id {among:leases}

-- The live todo that holds the key of this dead one.
-- name: todo_key_rival
select n.id from todos t join todos n on n.queue = t.queue and n.idempotency_key = t.idempotency_key and n.id <> t.id
where t.id = :id and t.state = 'failed' and n.state <> 'done' and not (n.state = 'failed' and n.next_retry_at is null)

-- How a todo stands before somebody steers it, who waits here for whoever does so just now.
-- name: todo_steered
select {todo_line} from todos where id = :id and state = :state
[creator] and {made}
{wait_lock}

-- name: todo_retry
update todos set state = 'pending', attempt = 0, next_retry_at = null, reason = null, error = null, result = null,
  completed_at = null, updated_at = {now}
where id = :id and state = 'failed'
[creator] and {made}
returning {todo}

-- name: todo_cancel [postgres]
with live as materialized (
  select id, lease_id, owner, claimed_at from todos
  where id = :id and (state in ('pending', 'claimed') or (state = 'failed' and next_retry_at is not null))
[creator] and {made}
  for update
), noted as (
  insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome, note)
  select id, coalesce(lease_id, :entry), owner, claimed_at, {now}, 'cancelled', :note from live
)
update todos t set state = 'failed', owner = null, lease_id = null, lease_expires_at = null, claim_key = null,
  claimed_at = null, available_at = null, next_retry_at = null, reason = 'cancelled', error = :note,
  completed_at = {now}, updated_at = {now}
from live where t.id = live.id
returning {todo_returning}

-- name: todo_cancel [sqlite]
insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome, note)
select id, coalesce(lease_id, :entry), owner, claimed_at, :now, 'cancelled', :note from todos
where id = :id and (state in ('pending', 'claimed') or (state = 'failed' and next_retry_at is not null))
[creator] and {made}
;
update todos set state = 'failed', owner = null, lease_id = null, lease_expires_at = null, claim_key = null,
  claimed_at = null, available_at = null, next_retry_at = null, reason = 'cancelled', error = :note,
  completed_at = :now, updated_at = :now
where id = :id and (state in ('pending', 'claimed') or (state = 'failed' and next_retry_at is not null))
[creator] and {made}
returning {todo}

-- name: todo_update
update todos set updated_at = {now}
[title] , title = :title
[priority] , priority = :priority
[payload_given] , payload = :payload
[assignee_given] , assignee = :assignee
[available_given] , available_at = case when cast(:available_at as bigint) > {now} then cast(:available_at as bigint) end
where id = :id and state = 'pending'
[creator] and {made}
returning {todo}
