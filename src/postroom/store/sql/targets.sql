-- A target's columns in the order of its fields; $1 is the name its table goes by.
-- fragment: target
$1.target_key, $1.carrier, $1.turn_delivery, $1.turn_since, $1.not_before, $1.busy_reason, $1.busy_since

-- Targets with something to carry. Each key is found by a seek from the one before, never by reading a target's rows.
-- name: target_ready
with recursive keys(k) as (
  select min(f.k) from (
    {next_key::after}) f
  union all
  select (select min(f.k) from (
    {next_key:keys.k}) f)
  from keys where keys.k is not null
)
select t.target_key from keys join targets t on t.target_key = keys.k
where (t.not_before is null or t.not_before <= {now})
  and {unheld:t.target_key}
  and (
    exists (select 1 from deliveries where target_key = t.target_key and next_attempt_at is null and {carriable_of:t})
    or exists (select 1 from deliveries where target_key = t.target_key and next_attempt_at <= {now} and {carriable_of:t}))
limit :limit

-- fragment: next_key
select (select target_key from deliveries
    where target_key > $1 and state = 'pending' and lease_id is null and next_attempt_at is null
    order by target_key limit 1) as k
  union all
  select (select target_key from deliveries
    where target_key > $1 and state = 'pending' and lease_id is null and next_attempt_at is not null
    order by target_key limit 1)

-- fragment: carriable_of
state = 'pending' and lease_id is null and (expires_at is null or expires_at > {now}) and reach {among:reaches}
and {has_its_endpoint:deliveries} and rank <= case when $1.turn_delivery is null then 2 else 0 end

-- When something of a target may be carried: each arm's first row, the urgent apart since a turn does not hold them.
-- name: target_next_due
select min({greatest}(coalesce(a.at, 0), coalesce(t.not_before, 0),
  case when a.rank > 0 and t.turn_since is not null then t.turn_since + cast(:turn_most as bigint) else 0 end,
  coalesce((select h.lease_expires_at {leased_at::target_key}), 0)
)) - {now}
from targets t cross join (
  select x.rank, x.at from (
    select rank, next_attempt_at as at from deliveries
    where target_key = :target_key and next_attempt_at is null and rank = 0 and {waits}
[reaches]     and reach {among:reaches}
    order by seq limit 1) x
  union all
  select x.rank, x.at from (
    select rank, next_attempt_at as at from deliveries
    where target_key = :target_key and next_attempt_at is null and rank > 0 and {waits}
[reaches]     and reach {among:reaches}
    order by rank, seq limit 1) x
  union all
  select x.rank, x.at from (
    select rank, next_attempt_at as at from deliveries
    where target_key = :target_key and next_attempt_at is not null and rank = 0 and {waits}
[reaches]     and reach {among:reaches}
    order by next_attempt_at limit 1) x
  union all
  select x.rank, x.at from (
    select rank, next_attempt_at as at from deliveries
    where target_key = :target_key and next_attempt_at is not null and rank > 0 and {waits}
[reaches]     and reach {among:reaches}
    order by next_attempt_at limit 1) x
) a
where t.target_key = :target_key

-- fragment: waits
state = 'pending' and lease_id is null and (expires_at is null or expires_at > {now}) and {has_its_endpoint:deliveries}

-- Whether something waits at a target for an endpoint that has ended.
-- name: target_bereft
select (select 1 {orphaned} is null limit 1) is not null or (select 1 {orphaned} is not null limit 1) is not null

-- fragment: orphaned
from deliveries where target_key = :target_key and state = 'pending' and lease_id is null
  and not {has_its_endpoint:deliveries} and next_attempt_at

-- name: target_seated
select exists (select 1 from endpoints e where e.target_key = :target_key and e.ended_at is null and {live:e})

-- name: target_defer
update targets set busy_reason = cast(:reason as text), busy_since = case when cast(:reason as text) is not null then {now} end
where target_key = :target_key and busy_reason is distinct from cast(:reason as text)
returning target_key

-- name: target_pause
update targets set not_before = case when cast(:wait as bigint) > 0 then {now} + cast(:wait as bigint) end
where target_key = :target_key
returning target_key

-- The turns that are on, the oldest first, each with the delivery that began it.
-- name: target_turns
select {parcel} from targets t {turn_of} {of_parcel}
where t.turn_delivery is not null and d.reach {among:reaches}
order by t.turn_since limit :limit

-- fragment: turn_of [postgres]
cross join lateral (select * from deliveries where id = t.turn_delivery offset 0) d

-- fragment: turn_of [sqlite]
join deliveries d on d.id = t.turn_delivery

-- fragment: turn_end_set
answered_at = case when cast(:answered as boolean) then coalesce(answered_at, {now}) else answered_at end,
seen_at = case when cast(:answered as boolean) then coalesce(seen_at, {now}) else seen_at end,
last_failure_reason = coalesce(cast(:reason as text), last_failure_reason), updated_at = {now}

-- Written so that no partial index fits: the target is found by its key.
-- fragment: is_on
coalesce(turn_delivery, '') = :id

-- name: target_end_turn [postgres]
with ended as (
  update targets set turn_delivery = null, turn_since = null where target_key = :target_key and {is_on}
  returning target_key
), noted as (
  update deliveries set {turn_end_set} where id = :id and exists (select 1 from ended)
  returning message_id
)
select ended.target_key, (select message_id from noted) from ended

-- name: target_end_turn [sqlite]
update deliveries set {turn_end_set}
where id = :id and exists (select 1 from targets where target_key = :target_key and {is_on});
update targets set turn_delivery = null, turn_since = null where target_key = :target_key and {is_on}
returning target_key, (select d.message_id from deliveries d where d.id = :id)

-- A turn that nobody ended does not hold its target for ever.
-- name: post_turns_over
with found as materialized (
  select target_key from targets where turn_delivery is not null and turn_since <= {now} - cast(:turn_most as bigint)
  order by turn_since limit :limit
), come as materialized (
  select target_key from targets
  where target_key in (select target_key from found) and turn_since <= {now} - cast(:turn_most as bigint)
  order by target_key {lock}
)
update targets set turn_delivery = null, turn_since = null
where target_key in (select target_key from come) and turn_since <= {now} - cast(:turn_most as bigint)
returning target_key
