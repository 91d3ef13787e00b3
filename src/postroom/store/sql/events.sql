-- fragment: event_head
seq, id, source, provider, delivery_key, kind, action, title, state, reason, verification, digest, deliveries,
received_at, last_delivery_at, octet_length(body) as body_bytes

-- fragment: event
{event_head}, headers, body_json

-- fragment: event_line
{event_head}, null as headers, null as body_json

-- A second delivery of one key waits here for the first one's commit, and then only counts.
-- name: event_insert
insert into events (id, source, provider, delivery_key, kind, action, title, state, reason, verification, digest,
  received_at, last_delivery_at, headers, body_json, body)
values (:id, :source, :provider, :delivery_key, :kind, :action, :title, :state, :reason, :verification, :digest,
  {now}, {now}, :headers, :body_json, :body)
on conflict (source, delivery_key) do update set deliveries = events.deliveries + 1, last_delivery_at = {now}
returning {event_line}

-- name: event_get
select {event} from events where id = :id

-- name: event_raw
select body from events where id = :id

-- name: event_list
select {event_line} from events where 1 = 1
[source] and source = :source
[kind] and kind = :kind
[state] and state = :state
[before] and seq < :before
order by seq desc limit :limit

-- name: event_todo_insert
insert into event_todos (event_id, todo_id, queue, rule, created)
values (:event_id, :todo_id, :queue, :rule, :created)
on conflict do nothing

-- name: event_todos_of
select event_id, todo_id, queue, rule, created from event_todos where event_id {among:ids} order by todo_id, rule

-- name: event_ids_of_todo
select event_id, todo_id, queue, rule, created from event_todos where todo_id = :id order by event_id, rule
