-- Each sweep is right without the lock: it only keeps two daemons from doing the same work.
-- name: sweep_lock [postgres]
select pg_try_advisory_xact_lock(727007, :kind)

-- What fell due is found by its own index and then locked in the order of ids: one step for both lets the planner walk
-- all ids of the table for the sake of their order.

-- Lapsed claims go back to pending, or become dead letters when their attempts are spent.
-- name: sweep_lapsed [postgres]
with found as materialized (
  select id from todos where state = 'claimed' and queue {among:queues} and lease_expires_at <= {now} limit :limit
), lapsed as materialized (
  select t.id, t.lease_id, t.owner, t.claimed_at from todos t
  where t.id = any(array(select id from found)) and t.state = 'claimed' and t.lease_expires_at <= {now}
  order by t.id {lock}
), noted as (
  insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome)
  select id, lease_id, owner, claimed_at, {now}, 'lapsed' from lapsed on conflict do nothing
)
update todos t set state = case when t.attempt >= t.max_attempts then 'failed' else 'pending' end,
  owner = null, lease_id = null, lease_expires_at = null, claim_key = null, claimed_at = null,
  reason = case when t.attempt >= t.max_attempts then 'exhausted' end,
  error = case when t.attempt >= t.max_attempts then 'the lease of ' || t.owner || ' lapsed' else t.error end,
  completed_at = case when t.attempt >= t.max_attempts then {now} end, updated_at = {now}
from lapsed where t.id = lapsed.id
returning t.id, t.queue, t.state

-- name: sweep_lapsed [sqlite]
insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome)
select id, lease_id, owner, claimed_at, :now, 'lapsed' from todos
where id in (select id from todos where state = 'claimed' and queue {among:queues} and lease_expires_at <= :now order by id limit :limit)
on conflict do nothing;
update todos set state = case when attempt >= max_attempts then 'failed' else 'pending' end,
  owner = null, lease_id = null, lease_expires_at = null, claim_key = null, claimed_at = null,
  reason = case when attempt >= max_attempts then 'exhausted' end,
  error = case when attempt >= max_attempts then 'the lease of ' || owner || ' lapsed' else error end,
  completed_at = case when attempt >= max_attempts then :now end, updated_at = :now
where id in (select id from todos where state = 'claimed' and queue {among:queues} and lease_expires_at <= :now order by id limit :limit)
returning id, queue, state

-- name: sweep_parked
with found as materialized (
  select id from todos where state = 'failed' and queue {among:queues} and next_retry_at <= {now} limit :limit
), come as materialized (
  select id from todos where id in (select id from found) and state = 'failed' and next_retry_at <= {now}
  order by id {lock}
)
update todos set state = 'pending', next_retry_at = null, updated_at = {now} where id in (select id from come)
returning id, queue, state

-- name: sweep_delayed
with found as materialized (
  select id from todos where state = 'pending' and queue {among:queues} and available_at <= {now} limit :limit
), come as materialized (
  select id from todos where id in (select id from found) and state = 'pending' and available_at <= {now}
  order by id {lock}
)
update todos set available_at = null, updated_at = {now} where id in (select id from come)
returning id, queue, state

-- name: sweep_done_ids slow
select id from todos where state = 'done' and queue = :queue and completed_at <= {now} - cast(:keep as bigint)
order by completed_at limit :limit

-- name: sweep_dead_ids slow
select id from todos where state = 'failed' and next_retry_at is null and queue = :queue
  and completed_at <= {now} - cast(:keep as bigint)
order by completed_at limit :limit

-- Children first; a todo that came back to life since it was listed stays.
-- name: sweep_todos_delete [postgres]
with gone as materialized (
  select id from todos where id {among:ids} and (state = 'done' or (state = 'failed' and next_retry_at is null))
  order by id {lock}
), attempts_gone as (delete from attempts where todo_id in (select id from gone)),
links_gone as (delete from event_todos where todo_id in (select id from gone))
delete from todos where id in (select id from gone) returning id

-- name: sweep_todos_delete [sqlite]
delete from attempts where todo_id in (select id from todos where id {among:ids} and (state = 'done' or (state = 'failed' and next_retry_at is null)));
delete from event_todos where todo_id in (select id from todos where id {among:ids} and (state = 'done' or (state = 'failed' and next_retry_at is null)));
delete from todos where id {among:ids} and (state = 'done' or (state = 'failed' and next_retry_at is null)) returning id

-- name: sweep_events
delete from events where id in (
  select e.id from events e where e.received_at <= {now} - cast(:keep as bigint)
    and not exists (select 1 from event_todos t where t.event_id = e.id)
  order by e.seq limit :limit)
returning id

-- name: sweep_requests
delete from requests where (principal, key) in (
  select principal, key from requests where created_at <= {now} - cast(:keep as bigint) order by created_at limit :limit)
returning key

-- name: clock
select {now}

-- name: engine_version [sqlite]
select sqlite_version()

-- name: engine_version [postgres]
select current_setting('server_version')

-- The age in seconds of the oldest open snapshot: it keeps dead rows and slows every claim.
-- name: oldest_snapshot [postgres]
select coalesce(max(extract(epoch from now() - xact_start)), 0) from pg_stat_activity
where backend_xmin is not null and pid <> pg_backend_pid()

-- A message that is past its time and has come to an end everywhere. Deliveries are locked first: what is retried in this
-- very moment stays, with its message.
-- fragment: ended_messages
select m.id from messages m where m.created_at <= {now} - cast(:keep as bigint) and not exists (
  select 1 from deliveries d where d.message_id = m.id and (d.state in ('pending', 'awaiting_ack') or d.lease_id is not null))
order by m.created_at limit :limit

-- name: sweep_messages [postgres]
with found as materialized ({ended_messages}), held as materialized (
  select d.id, d.message_id from deliveries d where d.message_id = any(array(select id from found))
    and d.state not in ('pending', 'awaiting_ack') and d.lease_id is null
  {lock}
), whole as materialized (
  select f.id from found f where (select count(*) from deliveries d where d.message_id = f.id)
    = (select count(*) from held h where h.message_id = f.id)
), deliveries_gone as (
  delete from deliveries where id = any(array(select h.id from held h join whole w on w.id = h.message_id))
)
delete from messages where id = any(array(select id from whole)) returning id

-- name: sweep_messages [sqlite]
delete from deliveries where message_id in ({ended_messages});
delete from messages where id in ({ended_messages}) returning id

-- name: sweep_admissions
delete from admissions where (client_id, key) in (
  select client_id, key from admissions where created_at <= {now} - cast(:keep as bigint) order by created_at limit :limit)
returning key

-- An endpoint stays while a delivery names it: only so can what waits there be told from what lost its way.
-- name: sweep_endpoints
delete from endpoints where id in (
  select e.id from endpoints e where e.ended_at <= {now} - cast(:keep as bigint)
    and not exists (select 1 from deliveries d where d.endpoint_id = e.id)
  order by e.ended_at limit :limit)
returning id
