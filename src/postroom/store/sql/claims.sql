-- The arms of the claim scan: what may be claimed of one queue, each by its own index; $1 is the queue, $2 the most
-- rows of an arm. Ready rows come in exact claim order, the due ones by how long they have been due; the caller merges.
-- fragment: arm
select id, queue, priority, created_at, seq from todos where queue = $1 and attempt < max_attempts

-- fragment: arm_here [sqlite]
select id, state, priority, created_at, seq from todos where queue = :queue and attempt < max_attempts

-- fragment: mine
(assignee is null or assignee = :owner or assignee = :name or assignee = cast(:called as text))

-- fragment: claim_order
priority desc, created_at, seq

-- fragment: claimable
attempt < max_attempts and {mine} and (
  (state = 'pending' and (available_at is null or available_at <= {now}))
  or (state = 'failed' and next_retry_at <= {now}) or (state = 'claimed' and lease_expires_at <= {now}))

-- fragment: lease_until
{now} + coalesce(cast(:ttl as bigint), (select q.lease_ms from queues q where q.name = $1.queue), 300000)

-- Candidates are read without locks, merged and cut, then locked with the whole predicate tested again: FOR UPDATE is
-- refused inside UNION, and locking each queue's head first would give another claimer a false empty. `rooms` says how
-- many a capped queue may still hand out (null: any); without them a capped queue makes the statement claim nothing,
-- and the third column of its answer says so. The first column counts the candidates, so that a claimer knows an
-- empty answer that rests on rows others had locked; $1 is one more condition. SQLite has neither LATERAL nor
-- data-changing WITH.
-- fragment: claim_ctes [postgres]
asked as (
  select q.name, q.room from unnest(cast(:queues as text[]), cast(:rooms as bigint[])) as q(name, room)
  where not exists (select 1 from queues s where s.name = q.name and s.paused)
    and (q.room is null or q.room > 0) and $1
    and (:capped or not exists (select 1 from queues s where s.name = any(cast(:queues as text[])) and s.max_in_flight is not null))
), candidates as materialized (
  select c.*, row_number() over (partition by c.queue order by c.priority desc, c.created_at, c.seq) as place, q.room
  from asked q cross join lateral (
    ({arm:q.name} and state = 'pending' and available_at is null and assignee is null order by {claim_order} limit :window)
    union all
    ({arm:q.name} and state = 'pending' and available_at is null and assignee = :owner order by {claim_order} limit :window)
    union all
    ({arm:q.name} and state = 'pending' and available_at is null and assignee = :name and :name <> :owner order by {claim_order} limit :window)
    union all
    ({arm:q.name} and state = 'pending' and available_at is null and assignee = cast(:called as text) order by {claim_order} limit :window)
    union all
    ({arm:q.name} and state = 'pending' and available_at <= {now} and {mine} order by available_at limit :window)
    union all
    ({arm:q.name} and state = 'failed' and next_retry_at <= {now} and {mine} order by next_retry_at limit :window)
    union all
    ({arm:q.name} and state = 'claimed' and lease_expires_at <= {now} and {mine} order by lease_expires_at limit :window)
  ) c
), locked as materialized (
  select id, state, owner, lease_id, claimed_at from todos
  where id = any(array(
      select c.id from candidates c where c.room is null or c.place <= c.room
      order by c.priority desc, c.created_at, c.seq limit :window))
    and {claimable}
  order by {claim_order} limit :limit
  {lock}
), lapsed as (
  insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome)
  select id, lease_id, owner, claimed_at, {now}, 'lapsed' from locked where state = 'claimed'
  on conflict do nothing
  returning todo_id, owner, claimed_at, ended_at, outcome, note
), taken as (
  update todos t set state = 'claimed', owner = :owner, lease_id = :new_lease, claim_key = :claim_key,
    lease_expires_at = {lease_until:t}, attempt = t.attempt + 1, available_at = null, next_retry_at = null,
    claimed_at = {now}, updated_at = {now}
  from locked where t.id = locked.id
  returning {todo_returning}
)

-- The history of a claimed row must hold the attempt that this very statement has seen lapse, which its snapshot hides.
-- fragment: taken [postgres]
select (select count(*) from candidates),
  not :capped and exists (select 1 from queues s where s.name = any(cast(:queues as text[])) and s.max_in_flight is not null),
  taken.*,
  (select json_agg(json_build_array(h.owner, h.claimed_at, h.ended_at, h.outcome, h.note) order by h.ended_at desc, h.claimed_at desc nulls first)
    from (select owner, claimed_at, ended_at, outcome, note from attempts where todo_id = taken.id
      union all select owner, claimed_at, ended_at, outcome, note from lapsed where todo_id = taken.id
      order by ended_at desc, claimed_at desc nulls first limit 50) h)
from (values (1)) one(n) left join taken on true

-- name: todo_claim [postgres]
with {claim_ctes:true}
{taken}

-- One round trip for a worker's whole step: end one attempt and take the next. The claim waits for the ending, or else
-- it may take the very todo that is being ended, when its lease has lapsed.
-- name: todo_complete_claim [postgres]
with completed as (
  update todos set state = 'done', result = :result, lease_expires_at = null, claim_key = null, error = null,
    completed_at = {now}, updated_at = {now}
  where id = :id and {is_claimed:state} and lease_id = :lease_id
    and (owner = :ended_by or substr(owner, 1, length(cast(:ended_by as text)) + 1) = cast(:ended_by as text) || '/')
  returning queue
), {claim_ctes:(select count(*) from completed) >= 0}
select (select queue from completed), answer.* from ({taken}) answer

-- SQLite reads one queue a call: a seek an arm is cheap where there is no round trip, and a query over all queues at
-- once would have to carry each queue's rows through JSON.
-- name: claim_candidates [sqlite]
select * from ({arm_here} and state = 'pending' and available_at is null and assignee is null order by {claim_order} limit :window)
union all
select * from ({arm_here} and state = 'pending' and available_at is null and assignee = :owner order by {claim_order} limit :window)
[by_name] union all
[by_name] select * from ({arm_here} and state = 'pending' and available_at is null and assignee = :name order by {claim_order} limit :window)
[called] union all
[called] select * from ({arm_here} and state = 'pending' and available_at is null and assignee = :called order by {claim_order} limit :window)
union all
select * from ({arm_here} and state = 'pending' and available_at <= :now and {mine} order by available_at limit :due_window)
union all
select * from ({arm_here} and state = 'failed' and next_retry_at <= :now and {mine} order by next_retry_at limit :due_window)
union all
select * from ({arm_here} and state = 'claimed' and lease_expires_at <= :now and {mine} order by lease_expires_at limit :due_window)

-- The queues that are not simply open: paused, or with a cap.
-- name: claim_barriers [sqlite]
select name, paused, max_in_flight from queues where name {among:queues} and (paused or max_in_flight is not null)

-- name: claim_lapsed [sqlite]
insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome)
select id, lease_id, owner, claimed_at, :now, 'lapsed' from todos where id {among:ids} and state = 'claimed'
on conflict do nothing

-- name: claim_take [sqlite]
update todos set state = 'claimed', owner = :owner, lease_id = :new_lease, claim_key = :claim_key,
  lease_expires_at = {lease_until:todos}, attempt = attempt + 1, available_at = null, next_retry_at = null,
  claimed_at = :now, updated_at = :now
where id {among:ids}
returning {todo}, {history:todos.id}

-- name: todo_claim_one [postgres]
with locked as materialized (
  select id, state, owner, lease_id, claimed_at from todos
  where id = :id and {claimable}
    and not exists (select 1 from queues s where s.name = todos.queue and (s.paused or (s.max_in_flight is not null and not :capped)))
  for update of todos
), lapsed as (
  insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome)
  select id, lease_id, owner, claimed_at, {now}, 'lapsed' from locked where state = 'claimed'
  on conflict do nothing
  returning todo_id, owner, claimed_at, ended_at, outcome, note
), taken as (
  update todos t set state = 'claimed', owner = :owner, lease_id = :new_lease, claim_key = :claim_key,
    lease_expires_at = {lease_until:t}, attempt = t.attempt + 1, available_at = null, next_retry_at = null,
    claimed_at = {now}, updated_at = {now}
  from locked where t.id = locked.id
  returning {todo_returning}
)
select taken.*,
  (select json_agg(json_build_array(h.owner, h.claimed_at, h.ended_at, h.outcome, h.note) order by h.ended_at desc, h.claimed_at desc nulls first)
    from (select owner, claimed_at, ended_at, outcome, note from attempts where todo_id = taken.id
      union all select owner, claimed_at, ended_at, outcome, note from lapsed where todo_id = taken.id
      order by ended_at desc, claimed_at desc nulls first limit 50) h)
from taken

-- name: todo_claim_one [sqlite]
insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome)
select id, lease_id, owner, claimed_at, :now, 'lapsed' from todos
where id = :id and state = 'claimed' and {claimable}
  and not exists (select 1 from queues s where s.name = todos.queue and (s.paused or (s.max_in_flight is not null and not :capped)))
on conflict do nothing;
update todos set state = 'claimed', owner = :owner, lease_id = :new_lease, claim_key = :claim_key,
  lease_expires_at = {lease_until:todos}, attempt = attempt + 1, available_at = null, next_retry_at = null,
  claimed_at = :now, updated_at = :now
where id = :id and {claimable}
  and not exists (select 1 from queues s where s.name = todos.queue and (s.paused or (s.max_in_flight is not null and not :capped)))
returning {todo}, {history:todos.id}

-- name: claim_key_lock [postgres]
select pg_advisory_xact_lock(hashtextextended(:lock_name, 0))

-- name: claims_by_key
select {todo}, {history:todos.id} from todos
where owner = :owner and claim_key = :claim_key and state = 'claimed' and lease_expires_at > {now}
order by {claim_order}

-- Capped queues: their rows are locked in the order of their names before the count, so that two claimers cannot both
-- see the last free place.
-- name: caps_lock [postgres]
select name, max_in_flight from queues where name {among:queues} and max_in_flight is not null order by name for update

-- name: caps_lock [sqlite]
select name, max_in_flight from queues where name {among:queues} and max_in_flight is not null order by name

-- name: caps_used
select queue, count(*) from todos
where queue {among:queues} and state = 'claimed' and lease_expires_at > {now}
group by queue

-- Lapsed claims whose attempts are spent: dead letters, a bounded number a call.
-- name: todo_bury_spent [postgres]
with found as materialized (
  select id from todos
  where queue {among:queues} and state = 'claimed' and lease_expires_at <= {now} and attempt >= max_attempts limit :limit
), spent as materialized (
  select t.id, t.lease_id, t.owner, t.claimed_at from todos t
  where t.id = any(array(select id from found))
    and t.state = 'claimed' and t.lease_expires_at <= {now} and t.attempt >= t.max_attempts
  order by t.id {lock}
), noted as (
  insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome)
  select id, lease_id, owner, claimed_at, {now}, 'lapsed' from spent on conflict do nothing
)
update todos t set state = 'failed', owner = null, lease_id = null, lease_expires_at = null, claim_key = null,
  claimed_at = null, reason = 'exhausted', error = 'the lease of ' || t.owner || ' lapsed',
  completed_at = {now}, updated_at = {now}
from spent where t.id = spent.id
returning t.id, t.queue, t.state

-- name: todo_bury_spent [sqlite]
insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome)
select id, lease_id, owner, claimed_at, :now, 'lapsed' from todos
where id in (select id from todos where queue {among:queues} and state = 'claimed' and lease_expires_at <= :now
  and attempt >= max_attempts order by id limit :limit)
on conflict do nothing;
update todos set state = 'failed', owner = null, lease_id = null, lease_expires_at = null, claim_key = null,
  claimed_at = null, reason = 'exhausted', error = 'the lease of ' || owner || ' lapsed',
  completed_at = :now, updated_at = :now
where id in (select id from todos where queue {among:queues} and state = 'claimed' and lease_expires_at <= :now
  and attempt >= max_attempts order by id limit :limit)
returning id, queue, state

-- How many ms until the soonest of these queues' todos falls due.
-- name: claim_next_due
select min(due) - {now} from (
  select min(available_at) as due from todos where queue {among:queues} and state = 'pending' and available_at is not null
  union all
  select min(next_retry_at) from todos where queue {among:queues} and state = 'failed' and next_retry_at is not null
  union all
  select min(lease_expires_at) from todos where queue {among:queues} and state = 'claimed'
) times

-- Who has ready work that only they may claim.
-- name: claim_assignees
select distinct assignee from todos
where queue = :queue and state = 'pending' and available_at is null and assignee is not null
limit 1000
