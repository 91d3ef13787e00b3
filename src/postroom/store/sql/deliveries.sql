-- A delivery's columns in the order of its fields; $1 is the name its table goes by.
-- fragment: delivery
$1.seq, $1.id, $1.message_id, $1.target_key, $1.carrier, $1.endpoint_id, $1.mailbox, $1.reach, $1.state, $1.rank,
$1.ack_mode, $1.attempt_count, $1.max_attempts, $1.round, $1.lease_id, $1.lease_expires_at, $1.doubtful,
$1.next_attempt_at, $1.ack_deadline, $1.reason, $1.last_failure_reason, $1.handoff_seq, $1.delivered_at, $1.seen_at,
$1.answered_at, $1.acknowledged_at, $1.expires_at, $1.created_at, $1.updated_at

-- Why nothing of it or of its target is tried now, and since when: only what is pending waits for that.
-- fragment: deferred
case when $1.state <> 'pending' then null when not {has_its_endpoint:$1} then 'endpoint_gone'
  else (select b.busy_reason from targets b where b.target_key = $1.target_key) end,
case when $1.state <> 'pending' then null
  when not {has_its_endpoint:$1} then (select o.ended_at from endpoints o where o.id = $1.endpoint_id)
  else (select b.busy_since from targets b where b.target_key = $1.target_key) end

-- fragment: parcel
{delivery:d}, case when d.state = 'pending' then t.busy_reason end, case when d.state = 'pending' then t.busy_since end,
{message:m}, {target:t}, {endpoint:e}

-- Each part is looked up by its key, row by row: a plan that was made while the tables were empty may not join them
-- otherwise when they have grown. SQLite has no LATERAL, and never joins otherwise.
-- fragment: of_parcel [postgres]
cross join lateral (select * from messages where id = d.message_id offset 0) m
left join lateral (select * from endpoints where id = {seat:d} offset 0) e on true

-- fragment: of_parcel [sqlite]
join messages m on m.id = d.message_id left join endpoints e on e.id = {seat:d}

-- What one failed attempt waits, by carrier (delivery.delays_of).
-- fragment: pause_of
case when carrier = 'opencode'
  then case when attempt_count <= 1 then 1000 when attempt_count = 2 then 2000 when attempt_count = 3 then 5000
    when attempt_count = 4 then 15000 else 60000 end
  when carrier = 'webhook'
  then case when attempt_count <= 1 then 5000 when attempt_count = 2 then 300000 when attempt_count = 3 then 1800000
    when attempt_count = 4 then 7200000 when attempt_count = 5 then 18000000 else 36000000 end
  else case when attempt_count <= 1 then 5000 when attempt_count = 2 then 15000 when attempt_count = 3 then 60000
    else 300000 end
end

-- fragment: doubted_pause
{greatest}({pause_of}, cast(:unknown as bigint))

-- fragment: spent
attempt_count >= max_attempts

-- What may be carried of a target now, as far as the row itself goes. While a turn is on, only the urgent ones may;
-- $1 is where the target's row is read.
-- fragment: carriable
state = 'pending' and lease_id is null and (expires_at is null or expires_at > {now}) and reach {among:reaches}
and {has_its_endpoint:deliveries}
and rank <= (select case when g.turn_delivery is null then 2 else 0 end from $1 g where g.target_key = :target_key)

-- The two arms of a look at a target: in exact order what never failed, by its time what did; the caller merges.
-- fragment: arms
select x.id, x.rank, x.seq from (
  select id, rank, seq from deliveries
  where target_key = :target_key and next_attempt_at is null and {carriable:$1} order by rank, seq limit 1) x
union all
select y.id, y.rank, y.seq from (
  select id, rank, seq from deliveries
  where target_key = :target_key and next_attempt_at <= {now} and {carriable:$1} order by next_attempt_at limit 8) y

-- fragment: not_paused
exists (select 1 from $1 g where g.target_key = :target_key and (g.not_before is null or g.not_before <= {now}))

-- The delivery that is leased at the target $1. The order, of one row at the most, leaves the planner no other index,
-- even for a plan that was made while the table was empty.
-- fragment: leased_at
from deliveries h where h.target_key >= $1 and h.target_key <= $1 and h.lease_id is not null order by h.target_key limit 1

-- fragment: unheld
coalesce((select h.lease_expires_at {leased_at:$1}), 0) <= {now}

-- name: delivery_head [postgres]
with head as materialized (
  select a.id from ({arms:targets}) a
  where {not_paused:targets} and {unheld::target_key}
  order by a.rank, a.seq limit 1
), d as materialized (
  select * from deliveries where id = (select id from head)
), t as materialized (
  select * from targets where target_key = :target_key
)
select {parcel} from d cross join t {of_parcel}

-- fragment: lease_set
lease_id = :lease_id, lease_expires_at = {now} + cast(:lease as bigint), attempt_count = attempt_count + 1,
next_attempt_at = null, updated_at = {now}

-- One round trip. The target's row is locked first, as everywhere, so that a turn which was set since this statement
-- began is seen; the chosen row is locked with its predicate tested again. The first column says that a lease here has
-- lapsed: then nothing is taken, and the caller settles that one before it asks again, in one transaction.
-- name: delivery_lease [postgres]
with target as materialized (
  select {target:t} from targets t where t.target_key = :target_key for update
), holder as materialized (
  select h.lease_expires_at {leased_at::target_key}
), head as materialized (
  select a.id from ({arms:target}) a
  where {not_paused:target} and not exists (select 1 from holder)
  order by a.rank, a.seq limit 1
), locked as materialized (
  select id from deliveries where id = (select id from head) and state = 'pending' and lease_id is null
    and (expires_at is null or expires_at > {now}) and (next_attempt_at is null or next_attempt_at <= {now})
  for update
), taken as (
  update deliveries set {lease_set} where id = (select id from locked) and lease_id is null
  returning {delivery:deliveries}
)
select exists (select 1 from holder where lease_expires_at <= {now}), p.*
from (values (1)) one(n) left join (
  select {parcel} from taken d cross join target t {of_parcel}) p on true

-- SQLite looks for the row first, and then reads or takes it: as a part of either it would do the looking twice.
-- name: delivery_head_id [sqlite]
select a.id from ({arms:targets}) a
where {not_paused:targets} and {unheld::target_key}
order by a.rank, a.seq limit 1

-- name: delivery_lease [sqlite]
update deliveries set {lease_set} where id = :id

-- name: delivery_parcel [sqlite]
select {parcel} from deliveries d join targets t on t.target_key = d.target_key {of_parcel} where d.id = :id

-- A lapsed lease is a failed attempt whose write may have been made.
-- fragment: lapse_set
state = case when state = 'pending' and {spent} then 'failed' else state end,
reason = case when state = 'pending' and {spent} then 'unconfirmed' else reason end,
next_attempt_at = case when state = 'pending' and not ({spent}) then {now} + {doubted_pause} end,
doubtful = case when state = 'pending' then true else doubtful end,
last_failure_reason = case when state = 'pending' then cast(:why as text) else last_failure_reason end,
lease_id = null, lease_expires_at = null, updated_at = {now}

-- What is told of a delivery that something befell by itself, and who sent its message.
-- fragment: touched
target_key, message_id, mailbox, state, reason,
  (select m.sender from messages m where m.id = deliveries.message_id),
  (select m.created_by from messages m where m.id = deliveries.message_id)

-- name: delivery_lapse [postgres]
with target as materialized (select target_key from targets where target_key = :target_key for update)
update deliveries set {lapse_set}
where id = (select h.id {leased_at::target_key}) and exists (select 1 from target)
  and lease_expires_at <= {now}
returning {touched}

-- name: delivery_lapse [sqlite]
update deliveries set {lapse_set}
where id = (select h.id {leased_at::target_key}) and lease_expires_at <= :now
returning {touched}

-- name: delivery_lapse_all [sqlite]
update deliveries set {lapse_set} where lease_expires_at is not null
returning {touched}

-- What the write came to: on a channel one that nobody can vouch for was made after all, if it was read before.
-- fragment: outcome
case when cast(:outcome as text) = 'unknown' and carrier = 'channel' and seen_at is not null then 'written'
  else cast(:outcome as text) end

-- A channel's push that is not to be repeated: it waits for its reader until its life ends.
-- fragment: pushed_once
(cast(:once as boolean) and {outcome} = 'unknown' and carrier = 'channel' and expires_at is not null)

-- fragment: final
({outcome} = 'permanent' or ({outcome} in ('refused', 'unknown') and {spent} and not {pushed_once}))

-- Whether it becomes visible in its mailbox: a channel's push does before anybody knows that it arrived.
-- fragment: shows
(cast(:outcome as text) = 'written' or (cast(:outcome as text) = 'unknown' and carrier = 'channel'))

-- The place that a delivery gets in its mailbox when it first becomes visible there, or has got while its row was waited
-- for: what this makes of the row as it was before is checked too.
-- fragment: place [postgres]
coalesce((select p.handoff_seq from place p), (select h.handoff_seq from held h))

-- fragment: place [sqlite]
(select b.handoff_seq from mailboxes b where b.name = deliveries.mailbox)

-- fragment: settle_set
state = case when state = 'acknowledged' then state
  when {outcome} = 'written' then case when ack_mode = 'acknowledged' then 'awaiting_ack' else 'injected' end
  when {final} then 'failed' else state end,
reason = case when state = 'pending' and {final} then
  case {outcome} when 'permanent' then 'no_such_target' when 'refused' then 'exhausted' else 'unconfirmed' end end,
next_attempt_at = case when state = 'pending' and not {final} then
  case when {pushed_once} then expires_at when {outcome} = 'refused' then {now} + {pause_of}
    when {outcome} = 'unknown' then {now} + {doubted_pause} end end,
ack_deadline = case when state = 'pending' and {outcome} = 'written' and ack_mode = 'acknowledged'
  then {now} + cast(:ack as bigint) end,
doubtful = case when state = 'acknowledged' then doubtful
  when {outcome} = 'written' then false when {outcome} = 'unknown' then true else doubtful end,
last_failure_reason = case when state = 'acknowledged' or {outcome} in ('written', 'busy') then last_failure_reason
  when {final} then coalesce(cast(:reason as text), last_failure_reason) else cast(:reason as text) end,
delivered_at = case when state = 'pending' and {outcome} = 'written' then coalesce(delivered_at, {now})
  else delivered_at end,
handoff_seq = case when state = 'pending' and {shows} then coalesce(handoff_seq, {place})
  else handoff_seq end,
lease_id = null, lease_expires_at = null, updated_at = {now}

-- Written so that no partial index over the leased rows fits: the row is found by its id.
-- fragment: held
id = :id and coalesce(lease_id, '') = :lease_id

-- fragment: turn_set
turn_delivery = case when cast(:turn as boolean) then :id else turn_delivery end,
turn_since = case when cast(:turn as boolean) then {now} else turn_since end, busy_reason = null, busy_since = null

-- The target is locked before the delivery, and the mailbox last, by every statement that needs more than one of them.
-- name: delivery_settle [postgres]
with target as materialized (
  select target_key from targets where target_key = :target_key for update
), held as materialized (
  select id, mailbox, state, handoff_seq, carrier from deliveries
  where {held} and (select count(*) from target) >= 0
  for update
), place as (
  insert into mailboxes (name, handoff_seq)
  select mailbox, 1 from held where state = 'pending' and {shows} and handoff_seq is null
  on conflict (name) do update set handoff_seq = mailboxes.handoff_seq + 1
  returning handoff_seq
), turned as (
  update targets set {turn_set}
  where target_key = :target_key and cast(:outcome as text) = 'written' and (cast(:turn as boolean) or busy_reason is not null)
    and exists (select 1 from held)
)
update deliveries set {settle_set}
where {held} and exists (select 1 from held)
returning {delivery:deliveries}, {deferred:deliveries}

-- name: delivery_settle [sqlite]
insert into mailboxes (name, handoff_seq)
select mailbox, 1 from deliveries
where {held} and state = 'pending' and {shows} and handoff_seq is null
on conflict (name) do update set handoff_seq = handoff_seq + 1;
update targets set {turn_set}
where target_key = :target_key and :outcome = 'written' and (:turn or busy_reason is not null)
  and exists (select 1 from deliveries where {held});
update deliveries set {settle_set}
where {held}
returning {delivery:deliveries}, {deferred:deliveries}

-- A mailbox was read up to a place: what was pushed to a channel there, and was not known to have arrived, has. What a
-- courier holds, and what failed otherwise, is noted as seen; when it came to that stays as it is. What lies before the
-- last place read was settled then.
-- name: delivery_read
with found as materialized (
  select id from deliveries
  where mailbox = :mailbox and handoff_seq <= cast(:place as bigint)
    and handoff_seq > coalesce((select b.read_seq from mailboxes b where b.name = :mailbox), 0)
    and carrier = 'channel' and {is_pushed}
), come as materialized (
  select id from deliveries where id in (select id from found) and {is_pushed} order by id {wait_lock}
)
update deliveries set
  state = case when {arrived} then case when ack_mode = 'acknowledged' then 'awaiting_ack' else 'injected' end else state end,
  reason = case when {arrived} then null else reason end,
  next_attempt_at = case when {arrived} then null else next_attempt_at end,
  ack_deadline = case when {arrived} and ack_mode = 'acknowledged' then {now} + cast(:ack as bigint) end,
  doubtful = case when {arrived} then false else doubtful end,
  delivered_at = case when {arrived} then coalesce(delivered_at, {now}) else delivered_at end,
  seen_at = coalesce(seen_at, {now}), updated_at = case when {arrived} then {now} else updated_at end
where id in (select id from come) and {is_pushed}
returning {touched}

-- fragment: arrived
(lease_id is null and coalesce(reason, 'unconfirmed') = 'unconfirmed')

-- fragment: is_pushed
state in ('pending', 'failed') and ({arrived} or seen_at is null)

-- fragment: ack_set
state = 'acknowledged', acknowledged_at = {now}, next_attempt_at = null, ack_deadline = null, reason = null,
handoff_seq = coalesce(handoff_seq, {place}), updated_at = {now}

-- name: delivery_ack [postgres]
with held as materialized (
  select id, mailbox, handoff_seq from deliveries where id = :id and state <> 'acknowledged' for update
), place as (
  insert into mailboxes (name, handoff_seq) select mailbox, 1 from held where handoff_seq is null
  on conflict (name) do update set handoff_seq = mailboxes.handoff_seq + 1
  returning handoff_seq
)
update deliveries set {ack_set}
where id = :id and state <> 'acknowledged' and exists (select 1 from held)
returning {delivery:deliveries}, {deferred:deliveries}

-- name: delivery_ack [sqlite]
insert into mailboxes (name, handoff_seq)
select mailbox, 1 from deliveries where id = :id and state <> 'acknowledged' and handoff_seq is null
on conflict (name) do update set handoff_seq = handoff_seq + 1;
update deliveries set {ack_set} where id = :id and state <> 'acknowledged'
returning {delivery:deliveries}, {deferred:deliveries}

-- name: delivery_retry
update deliveries set state = 'pending', attempt_count = 0, reason = null, next_attempt_at = null,
  round = case when delivered_at is not null and not doubtful then round + 1 else round end, updated_at = {now}
where id = :id and state = 'failed' and reason <> 'expired'
returning {delivery:deliveries}, {deferred:deliveries}

-- Rows are locked in the order of their ids: two cancellations of one message never wait for each other in a circle.
-- name: delivery_cancel
with found as materialized (
  select id from deliveries where message_id = :message_id
), held as materialized (
  select id from deliveries
  where id in (select id from found) and state in ('pending', 'awaiting_ack') and lease_id is null
  order by id {wait_lock}
)
update deliveries set state = 'failed', reason = 'cancelled', next_attempt_at = null, ack_deadline = null,
  last_failure_reason = cast(:why as text), updated_at = {now}
where id in (select id from held) and state in ('pending', 'awaiting_ack') and lease_id is null
returning id

-- fragment: wait_lock [postgres]
for update

-- fragment: wait_lock [sqlite]

-- name: delivery_seen
update deliveries set seen_at = {now}, updated_at = {now} where id = :id and seen_at is null
returning message_id

-- name: deliveries_of
with d as materialized (select * from deliveries where message_id {among:message_ids})
select {delivery:d}, {deferred:d} from d order by d.seq

-- A message with its deliveries, and who made the endpoint that each one goes to.
-- name: delivery_receipts
with m as materialized (
  select * from messages where id = :id
), d as materialized (
  select * from deliveries where message_id = :id
)
select (select e.created_by from endpoints e where e.id = d.endpoint_id), {message:m}, {delivery:d}, {deferred:d}
from m left join d on true
order by d.seq

-- Whether anything has fallen due by itself: most looks find nothing, and cost no transaction.
-- name: post_due
select exists (select 1 from deliveries where lease_expires_at <= {now}),
  exists (select 1 from deliveries where ack_deadline is not null and ack_deadline <= {now}),
  exists (select 1 from deliveries
    where state = 'pending' and expires_at is not null and expires_at <= {now} and lease_id is null),
  exists (select 1 from targets where turn_delivery is not null and turn_since <= {now} - cast(:turn_most as bigint))

-- What falls due by itself. Rows are found by their own index, then locked in the order of their ids.
-- name: post_lapsed
with found as materialized (
  select id from deliveries where lease_expires_at <= {now} order by lease_expires_at limit :limit
), come as materialized (
  select id from deliveries where id in (select id from found) and {is_lapsed} order by id {lock}
)
update deliveries set {lapse_set} where id in (select id from come) and {is_lapsed}
returning {touched}

-- name: post_overdue
with found as materialized (
  select id from deliveries where ack_deadline is not null and ack_deadline <= {now} order by ack_deadline limit :limit
), come as materialized (
  select id from deliveries where id in (select id from found) and {is_overdue} order by id {lock}
)
update deliveries set state = case when {spent} then 'failed' else 'pending' end,
  reason = case when {spent} then 'ack_timeout' end, round = case when {spent} then round else round + 1 end,
  doubtful = case when {spent} then doubtful else false end, ack_deadline = null,
  last_failure_reason = cast(:why as text), updated_at = {now}
where id in (select id from come) and {is_overdue}
returning {touched}

-- name: post_expired
with found as materialized (
  select id from deliveries where state = 'pending' and expires_at is not null and expires_at <= {now} and lease_id is null
  order by expires_at limit :limit
), come as materialized (
  select id from deliveries
  where id in (select id from found) and {is_pending:state} and expires_at <= {now} and lease_id is null
  order by id {lock}
)
update deliveries set state = 'failed', reason = 'expired', next_attempt_at = null, updated_at = {now}
where id in (select id from come) and {is_pending:state} and lease_id is null
returning {touched}

-- These are written so that no partial index fits: these rows are found by their ids. No state is ever ''.
-- fragment: is_pending
$1 in ('pending', '')

-- fragment: is_overdue
coalesce(ack_deadline, {now} + 1) <= {now}

-- fragment: is_lapsed
coalesce(lease_expires_at, {now} + 1) <= {now}
