-- An endpoint's columns in the order of its fields, and what it is attached to as JSON; $1 is the name its table goes by.
-- fragment: endpoint_alone
$1.seq, $1.id, $1.name, $1.carrier, $1.address, $1.target_key, $1.reach, $1.ack_mode, $1.max_attempts, $1.spill,
$1.rings, $1.pid, $1.created_by, $1.created_at, $1.seen_at, $1.ended_at

-- fragment: endpoint
{endpoint_alone:$1}, {attached:$1.id}

-- fragment: attached [postgres]
(select json_agg(json_build_array(a.what, a.name) order by a.what, a.name) from attachments a where a.endpoint_id = $1)

-- fragment: attached [sqlite]
(select json_group_array(json_array(a.what, a.name) order by a.what, a.name) from attachments a where a.endpoint_id = $1)

-- Whether the endpoint $1 is there to be written to: what is looked at or gives signs of life must not be silent.
-- fragment: live
({standing:$1.} and ($1.carrier not in ('tmux', 'channel') or $1.seen_at > {now} - cast(:silent as bigint)))

-- The texts of a list parameter as rows with one column, `value`.
-- fragment: each [postgres]
unnest(cast(:$1 as text[])) each(value)

-- fragment: each [sqlite]
json_each(:$1) each

-- Whether the delivery $1 has somebody to go to: it names no endpoint, or its endpoint is attached, or its place was
-- attached again under the same name (where none was given, by the same principal). A session that was only subscribed to
-- channels is there without an endpoint. Written so that no index over what has an endpoint fits, and each endpoint is
-- looked up by its key.
-- fragment: has_its_endpoint
(coalesce($1.endpoint_id, '') = '' or (select 1 from endpoints o where o.id = $1.endpoint_id and ({standing:o.}
  or not o.rings and o.target_key = 'opencode:' || o.name or (select 1 from endpoints n
    where n.target_key = o.target_key and n.ended_at is null
      and coalesce(n.name, n.created_by) = coalesce(o.name, o.created_by) limit 1) is not null) limit 1) is not null)

-- The endpoint that the delivery $1 is carried to: its own, or what its place was attached as again under the same name.
-- That one says what stands there now; the address of the one that has ended may be another program's.
-- fragment: seat
coalesce((select (select n.id from endpoints n where n.target_key = o.target_key and n.ended_at is null
    and coalesce(n.name, n.created_by) = coalesce(o.name, o.created_by) limit 1)
  from endpoints o where o.id = $1.endpoint_id limit 1), $1.endpoint_id)

-- Whether it still has somebody to go to: asked under the lease, right before a write.
-- name: delivery_attached
select 1 from deliveries d where d.id = :id and {has_its_endpoint:d}

-- name: endpoint_get
select {endpoint:e} from endpoints e where e.id = :id

-- name: endpoint_standing
select {endpoint:e} from endpoints e where e.target_key = :target_key and e.ended_at is null

-- The few that fit are ordered by the caller: the number's own index would be walked for their order. Each send to a name
-- asks, so they come without what they are attached to, which takes longer than all the rest.
-- name: endpoints_named
select {endpoint_alone:e}, null from endpoints e where e.name = :name and e.ended_at is null and {live:e} limit :limit

-- name: endpoints_attached
select {endpoint:e} from attachments k join endpoints e on e.id = k.endpoint_id
where k.what = :what and k.name = :name and {standing:e.}
[silent] and {live:e}
limit :limit

-- name: endpoint_list slow
select {endpoint:e}
from endpoints e where 1 = 1
[standing] and e.ended_at is null
[living] and {live:e}
[dead] and not {live:e}
[name] and e.name = :name
[repository] and e.id in (select k.endpoint_id from attachments k where k.what = 'repository' and k.name = :repository)
[queue] and e.id in (select k.endpoint_id from attachments k where k.what = 'queue' and k.name = :queue)
[channel] and e.id in (select k.endpoint_id from attachments k where k.what = 'channel' and k.name = :channel)
order by e.seq limit :limit

-- The endpoints of a carrier that the daemons' settings named, and whether some daemon has given a sign of each lately.
-- name: endpoints_appointed slow
select {endpoint:e}, e.seen_at > {now} - cast(:silent as bigint) from endpoints e
where e.created_by = 'postroom' and e.carrier = :carrier and e.ended_at is null

-- Which of these endpoints are live.
-- name: endpoints_live
select e.id from endpoints e where e.id {among:ids} and {live:e}

-- name: endpoint_insert
insert into endpoints (id, name, carrier, address, target_key, reach, ack_mode, max_attempts, spill, rings, pid,
  created_by, created_at, seen_at)
values (:id, :name, :carrier, :address, :target_key, :reach, :ack_mode, :max_attempts, :spill, :rings,
  cast(:pid as bigint), :created_by, {now}, {now})
returning id

-- Not ended, written so that the indexes over what stands do not fit: the row is found by its id; $1 is its prefix.
-- fragment: standing
coalesce($1ended_at, -1) = -1

-- name: endpoint_end
update endpoints set ended_at = {now} where id = :id and {standing}
returning id

-- name: endpoints_end_of
update endpoints set ended_at = {now} where created_by = :name and ended_at is null
returning id

-- name: endpoint_touch
update endpoints set seen_at = {greatest}(seen_at, {now}) where id {among:ids} and {standing}
returning id

-- name: attachments_insert
insert into attachments (what, name, endpoint_id)
select :what, each.value, :id from {each:names} where 1 = 1
on conflict do nothing
returning name

-- name: attachment_remove
delete from attachments where what = :what and name = :name and endpoint_id = :id
returning name

-- name: attachments_clear
delete from attachments where endpoint_id {among:ids}
returning name

-- name: channel_list
select k.name, coalesce(e.name, e.id), e.id, e.seq from attachments k join endpoints e on e.id = k.endpoint_id
where k.what = 'channel'
[channel] and k.name = :channel
limit :limit

-- Who works on what now: the claims, the one that was heard of last first.
-- name: occupied slow
select owner, id, title, queue, updated_at from todos where state = 'claimed' order by updated_at desc limit :limit
