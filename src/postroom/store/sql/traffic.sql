-- The carrier that a target's key begins with: the keys stand in the indexes that are counted by, the carriers do not.
-- fragment: carrier_in [postgres]
split_part(target_key, ':', 1)

-- fragment: carrier_in [sqlite]
substr(target_key, 1, instr(target_key, ':') - 1)

-- How many deliveries are not at their end, and how many failed, by carrier; for those that wait also the age of the one
-- that was admitted first. Each arm counts a partial index. A ring that nobody heard is no failed delivery: its kind is
-- looked up row by row, so that no plan reads the messages for it.
-- name: traffic_counts slow
select c.carrier, c.stage, c.n, {now} - (select f.created_at from deliveries f where f.seq = c.first)
from (
  select {carrier_in} as carrier, 'ready' as stage, count(*) as n, min(seq) as first from deliveries
  where state = 'pending' and lease_id is null and next_attempt_at is null group by 1
  union all
  select {carrier_in}, 'retrying', count(*), min(seq) from deliveries
  where state = 'pending' and lease_id is null and next_attempt_at is not null group by 1
  union all
  select {carrier_in}, 'being_written', count(*), min(seq) from deliveries
  where state = 'pending' and lease_id is not null group by 1
  union all
  select carrier, 'awaiting_ack', count(*), null from deliveries where state = 'awaiting_ack' group by 1
  union all
  select d.carrier, 'failed', count(*), null from deliveries d
  where d.state = 'failed' and d.reason <> 'cancelled'
    and coalesce((select m.kind from messages m where m.id = d.message_id), '') <> 'queue.ring'
  group by 1
) c

-- fragment: held_up
from deliveries where target_key = t.target_key and state = 'pending' and lease_id is null and next_attempt_at

-- The targets where deliveries wait for a reason, the longest first, with how many wait. A reason may outlast what
-- waited for it.
-- name: traffic_deferred slow
select t.target_key, t.carrier, t.busy_reason, t.busy_since,
  (select count(*) from (select 1 {held_up} is null limit :most) n)
    + (select count(*) from (select 1 {held_up} is not null limit :most) n),
  coalesce((select mailbox {held_up} is null limit 1), (select mailbox {held_up} is not null limit 1))
from targets t
where t.busy_reason is not null
  and ((select 1 {held_up} is null limit 1) is not null or (select 1 {held_up} is not null limit 1) is not null)
order by t.busy_since limit :limit

-- name: traffic_endpoints
select count(*) filter (where {live:e}), count(*) from endpoints e where e.ended_at is null
