-- fragment: queue
name, paused, lease_ms, max_attempts, backoff_ms, backoff_cap_ms, max_in_flight, keep_done_ms, keep_dead_ms

-- Queues exist by use: those that have live rows, and with `all_of` those with settings or finished rows too. Each name
-- is found by a seek in a partial index from the one before, never by reading a queue's rows.
-- name: queue_names
with recursive
  ready(name) as (
    select min(queue) from todos where state = 'pending' and available_at is null and assignee is null
    union all
    select (select min(queue) from todos where queue > ready.name and state = 'pending' and available_at is null and assignee is null)
    from ready where ready.name is not null),
  assigned(name) as (
    select min(queue) from todos where state = 'pending' and available_at is null and assignee is not null
    union all
    select (select min(queue) from todos where queue > assigned.name and state = 'pending' and available_at is null and assignee is not null)
    from assigned where assigned.name is not null),
  delayed(name) as (
    select min(queue) from todos where state = 'pending' and available_at is not null
    union all
    select (select min(queue) from todos where queue > delayed.name and state = 'pending' and available_at is not null)
    from delayed where delayed.name is not null),
  parked(name) as (
    select min(queue) from todos where state = 'failed' and next_retry_at is not null
    union all
    select (select min(queue) from todos where queue > parked.name and state = 'failed' and next_retry_at is not null)
    from parked where parked.name is not null),
  leased(name) as (
    select min(queue) from todos where state = 'claimed'
    union all
    select (select min(queue) from todos where queue > leased.name and state = 'claimed')
    from leased where leased.name is not null)
[all_of] , dead(name) as (
[all_of]   select min(queue) from todos where state = 'failed' and next_retry_at is null
[all_of]   union all
[all_of]   select (select min(queue) from todos where queue > dead.name and state = 'failed' and next_retry_at is null)
[all_of]   from dead where dead.name is not null),
[all_of] done(name) as (
[all_of]   select min(queue) from todos where state = 'done'
[all_of]   union all
[all_of]   select (select min(queue) from todos where queue > done.name and state = 'done')
[all_of]   from done where done.name is not null)
select name from (
  select name from ready union select name from assigned union select name from delayed
  union select name from parked union select name from leased
[all_of] union select name from dead union select name from done union select name from queues
) every where name is not null order by name

-- name: queue_settings
select {queue} from queues where 1 = 1
[queues] and name {among:queues}
order by name

-- name: queue_put
insert into queues (name, paused, lease_ms, max_attempts, backoff_ms, backoff_cap_ms, max_in_flight, keep_done_ms, keep_dead_ms)
values (:name, :paused, :lease_ms, :max_attempts, :backoff_ms, :backoff_cap_ms, :max_in_flight, :keep_done_ms, :keep_dead_ms)
on conflict (name) do update set paused = excluded.paused, lease_ms = excluded.lease_ms,
  max_attempts = excluded.max_attempts, backoff_ms = excluded.backoff_ms, backoff_cap_ms = excluded.backoff_cap_ms,
  max_in_flight = excluded.max_in_flight, keep_done_ms = excluded.keep_done_ms, keep_dead_ms = excluded.keep_dead_ms
returning {queue}

-- Each depth comes from its own partial index.
-- name: queue_depths slow
select 'pending', queue, count(*), min(created_at) from todos where state = 'pending' and available_at is null and assignee is null and queue {among:queues} group by queue
union all
select 'pending', queue, count(*), min(created_at) from todos where state = 'pending' and available_at is null and assignee is not null and queue {among:queues} group by queue
union all
select 'pending', queue, count(*), min(created_at) from todos where state = 'pending' and available_at is not null and queue {among:queues} group by queue
union all
select 'claimed', queue, count(*), null from todos where state = 'claimed' and queue {among:queues} group by queue
union all
select 'parked', queue, count(*), null from todos where state = 'failed' and next_retry_at is not null and queue {among:queues} group by queue
union all
select 'dead', queue, count(*), null from todos where state = 'failed' and next_retry_at is null and reason <> 'cancelled' and queue {among:queues} group by queue

-- name: queue_touch
insert into queues (name) values (:name) on conflict (name) do update set name = excluded.name returning name
