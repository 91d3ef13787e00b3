-- fragment: event_head
seq, id, source, provider, delivery_key, kind, action, title, state, reason, verification, digest, deliveries,
received_at, last_delivery_at, octet_length(body) as body_bytes

-- fragment: event
{event_head}, headers, body_json, suspected_replay, trace, rules_version

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
