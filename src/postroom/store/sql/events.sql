-- fragment: event_head
seq, id, source, provider, delivery_key, kind, action, title, state, reason, verification, digest, deliveries,
received_at, last_delivery_at, octet_length(body) as body_bytes

-- A body that is its own clean text is kept once: an empty text, which is no JSON, stands for it.
-- fragment: event_body [sqlite]
case body_json when '' then cast(body as text) else body_json end as body_json

-- fragment: event_body [postgres]
case body_json when '' then convert_from(body, 'UTF8') else body_json end as body_json

-- fragment: event
{event_head}, headers, {event_body}, suspected_replay, trace, rules_version

-- fragment: event_line
{event_head}, null as headers, null as body_json, suspected_replay, null as trace, rules_version

-- A second delivery of one key waits here for the first one's commit, and then only counts. The same bytes under another
-- id are suspected to be sent by somebody else, unless the id is proved to be the sender's.
-- name: event_insert
insert into events (id, source, provider, delivery_key, kind, action, title, state, reason, verification, digest,
  received_at, last_delivery_at, headers, body_json, body, suspected_replay, trace, rules_version)
values (:id, :source, :provider, :delivery_key, :kind, :action, :title, :state, :reason, :verification, :digest,
  {now}, {now}, :headers, :body_json, :body,
  not :signed_key and exists (select 1 from events e
    where e.source = :source and e.digest = :digest and e.delivery_key <> :delivery_key),
  :trace, :rules_version)
on conflict (source, delivery_key) do update set deliveries = events.deliveries + 1, last_delivery_at = {now}
returning {event_line}

-- Events and their todos in one trip, where nothing holds back: an event whose todo's key a live todo holds is left out,
-- and a key that is taken at this very moment fails them all. A known delivery only counts, and makes no todos. Numbers
-- are taken in the order of the input, rows inserted in the order of their keys, as with the todos of a batch. The bodies
-- come end to end, since an array of them would be sent as text of twice their length.
-- name: event_take_in [postgres]
with came as materialized (
  select c.*, nextval(pg_get_serial_sequence('events', 'seq')) as seq
  from json_to_recordset(cast(:events as json)) as c(place integer, size integer, id text, source text, provider text, delivery_key text,
    kind text, action text, title text, state text, reason text, verification text, digest text, headers text,
    body_json text, signed_key boolean, trace text, rules_version integer)
), asked as materialized (
  select a.*, nextval(pg_get_serial_sequence('todos', 'seq')) as seq
  from json_to_recordset(cast(:todos as json)) as a(event_id text, id text, queue text, source text, rule text, kind text,
    title text, key text, assignee text, max_attempts integer, priority integer, delay bigint, payload text)
), taken as (
  insert into events (seq, id, source, provider, delivery_key, kind, action, title, state, reason, verification, digest,
    received_at, last_delivery_at, headers, body_json, body, suspected_replay, trace, rules_version)
  select c.seq, c.id, c.source, c.provider, c.delivery_key, c.kind, c.action, c.title, c.state, c.reason, c.verification,
    c.digest, {now}, {now}, c.headers, c.body_json,
    substring(cast(:bodies as bytea) from c.place for c.size),
    not c.signed_key and exists (select 1 from events e
      where e.source = c.source and e.digest = c.digest and e.delivery_key <> c.delivery_key),
    c.trace, c.rules_version
  from came c
  where not exists (select 1 from asked a cross join lateral (
    select 1 from todos where queue = a.queue and idempotency_key = a.key and {keyed} limit 1) held
    where a.event_id = c.id)
  order by c.source, c.delivery_key
  on conflict (source, delivery_key) do update set deliveries = events.deliveries + 1, last_delivery_at = {now}
  returning {event_line}
), made as (
  insert into todos (seq, id, queue, source, kind, title, event_id, idempotency_key, assignee, max_attempts, priority,
    available_at, created_by, created_at, updated_at, payload)
  select a.seq, a.id, a.queue, a.source, a.kind, a.title, e.id, a.key, a.assignee,
    coalesce(a.max_attempts, q.max_attempts, 5), a.priority, case when a.delay > 0 then {now} + a.delay end,
    'source:' || e.source, {now}, {now}, a.payload
  from asked a join taken e on e.id = a.event_id left join queues q on q.name = a.queue
  order by a.queue, a.key
), linked as (
  insert into event_todos (event_id, todo_id, queue, rule, created)
  select e.id, a.id, a.queue, a.rule, true from asked a join taken e on e.id = a.event_id
)
select * from taken

-- name: event_get
select {event} from events where id = :id

-- name: event_raw
select body from events where id = :id

-- The list is read off the loop: few of many events may pass its filters.
-- name: event_list slow
select {event_line} from events where 1 = 1
[source] and source = :source
[kind] and kind = :kind
[action] and action = :action
[held] and state = 'held'
[state] and state = :state
[since] and received_at >= :since
[until] and received_at < :until
[suspected] and suspected_replay
[unsuspected] and not suspected_replay
[before] and seq < :before
order by seq desc limit :limit

-- In the order of their receipt, for what is done to one after the other.
-- name: event_seqs slow
select seq, id from events where 1 = 1
[source] and source = :source
[kind] and kind = :kind
[action] and action = :action
[held] and state = 'held'
[state] and state = :state
[since] and received_at >= :since
[until] and received_at < :until
[suspected] and suspected_replay
[unsuspected] and not suspected_replay
[after] and seq > :after
order by seq limit :limit

-- What an event is by today's reading and rules; when and how it came stays as it was.
-- name: event_redecide
update events set kind = :kind, action = :action, title = :title, body_json = :body_json, state = :state,
  reason = :reason, trace = :trace, rules_version = :rules_version
where id = :id
[held] and state = 'held'
returning {event_line}

-- How an event stands before it is sorted anew, or thrown away.
-- name: event_steered
select state, reason from events where id = :id {wait_lock}

-- name: event_discard
update events set state = 'ignored',
  reason = substr(cast(:words as text) || coalesce('; it was held: ' || reason, ''), 1, 1000)
where id = :id and state = 'held'
returning {event_line}

-- name: event_todo_insert
insert into event_todos (event_id, todo_id, queue, rule, created)
values (:event_id, :todo_id, :queue, :rule, :created)
on conflict do nothing

-- name: event_todos_of
select event_id, todo_id, queue, rule, created from event_todos where event_id {among:ids} order by todo_id, rule

-- name: event_ids_of_todo
select event_id, todo_id, queue, rule, created from event_todos where todo_id = :id order by event_id, rule
