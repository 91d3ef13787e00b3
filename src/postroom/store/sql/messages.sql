-- A message's columns in the order of its fields; $1 is the name its table goes by.
-- fragment: message
$1.seq, $1.id, $1.client_id, $1.idempotency_key, $1.digest, $1.sender, $1.addressed, $1.channel, $1.kind, $1.priority,
$1.reply_to, $1.payload, $1.ack_mode, $1.metadata, $1.correlation_id, $1.sender_repo, $1.target_repo, $1.provenance,
$1.created_by, $1.created_at, $1.expires_at

-- name: messages_whole
select {message:m} from messages m where m.id {among:ids}

-- What Postroom itself sent about this, the newest first.
-- name: notices_of
select {message:m} from messages m where m.created_by = 'postroom' and m.correlation_id = :about
order by m.seq desc limit :limit

-- What others sent about this todo, the newest first.
-- name: message_of_delivery
select message_id from deliveries where id = :id

-- name: messages_about
select {message:m} from messages m where substr(m.correlation_id, 1, 3) = 'td_' and m.created_by <> 'postroom'
  and m.correlation_id = :about
order by m.seq desc limit :limit

-- Who else answered a message after it was sent.
-- name: reply_senders
with answers as materialized (select m.sender from messages m
  where m.reply_to = :id and m.seq > :after and m.sender <> :sender order by m.seq)
select distinct sender from answers

-- The texts of the list parameter names, globs as this engine has them, cover $1.
-- fragment: spoken [postgres]
$1 ~ any(cast(:names as text[]))

-- fragment: spoken [sqlite]
exists (select 1 from json_each(:names) s where $1 glob s.value)

-- What an agent may see: what it sent or admitted, and what was sent to it or to an endpoint of its own.
-- fragment: concerns
(m.created_by = :viewer or {spoken:m.sender} or exists (select 1 from deliveries d where d.message_id = m.id
  and ({spoken:d.mailbox} or d.endpoint_id in (select e.id from endpoints e where e.created_by = :viewer))))

-- The first answer to a message that somebody else sent after it. Unlike in a list there are few candidates: a value
-- for each, where PostgreSQL would make of `exists` a table of all deliveries.
-- name: reply_first
select {message:m} from messages m where m.reply_to = :id and m.seq > :after and m.sender <> :sender
[viewer] and (m.sender {among:writers} or m.created_by = :viewer or {spoken:m.sender}
[viewer]   or (select 1 from deliveries d left join endpoints e on e.id = d.endpoint_id
[viewer]     where d.message_id = m.id and (e.created_by = :viewer or {spoken:d.mailbox}) limit 1) = 1)
order by m.seq limit 1

-- name: message_list slow
select {message:m} from messages m where 1 = 1
[sender] and m.sender = :sender
[addressed] and m.addressed = :addressed
[channel] and m.channel = :channel
[kind] and m.kind = :kind
[client_id] and m.client_id = :client_id
[target_repo] and m.target_repo = :target_repo
[reply_to] and m.reply_to = :reply_to
[state] and exists (select 1 from deliveries d where d.message_id = m.id and d.state = :state)
[cancelled] and exists (select 1 from deliveries d where d.message_id = m.id and d.reason = 'cancelled')
[endpoint_id] and m.id in (select d.message_id from deliveries d where d.endpoint_id = :endpoint_id
[endpoint_id]   and (cast(:state as text) is null or d.state = :state)
[endpoint_id]   and (cast(:cancelled as integer) is null or d.reason = 'cancelled'))
[before] and m.seq < :before
[viewer] and {concerns}
order by m.seq desc limit :limit

-- What was admitted before under these keys, or under this id: a message's id, and the digest of its content.
-- name: admission_known
select message_id, digest from admissions where client_id = '' and key = :msg_id
union all
select message_id, digest from admissions where client_id = :client_id and key = :key
union all
select id, digest from messages where id = :msg_id

-- fragment: replied_to
(exists (select 1 from messages where id = :reply_to)
  or exists (select 1 from admissions where client_id = '' and key = :reply_to))

-- name: reply_known
select 1 where {replied_to}

-- fragment: message_columns
id, client_id, idempotency_key, digest, sender, addressed, channel, kind, priority, reply_to, payload, ack_mode,
metadata, correlation_id, sender_repo, target_repo, provenance, created_by, created_at, expires_at

-- fragment: message_values
:id, :client_id, :idempotency_key, :digest, :sender, :addressed, :channel, :kind, :priority, :reply_to, :payload,
:ack_mode, :metadata, :correlation_id, :sender_repo, :target_repo, :provenance, :created_by, {now},
{now} + cast(:ttl as bigint)

-- fragment: delivery_columns
id, message_id, target_key, carrier, endpoint_id, mailbox, reach, state, rank, ack_mode, max_attempts, handoff_seq,
delivered_at, expires_at, created_at, updated_at

-- An inbox is its own courier: what goes there is there at once.
-- fragment: first_state
case when $1.carrier <> 'inbox' then 'pending' when $1.ack_mode = 'acknowledged' then 'awaiting_ack' else 'injected' end

-- Admission, one statement and so one round trip: `key` is the first key under which it may be known, `second` the
-- other. A known first key admits nothing; a known second one beside a new first breaks the statement off, so that no
-- half of it stays. What endpoints and the answered message were found to be before is looked at again here.
-- name: message_admit [postgres]
with standing as materialized (
  select 1 as ok where not exists (select 1 from messages where id = :id)
[endpoint_count] and (select count(*) from endpoints where id {among:endpoints} and {standing}) = :endpoint_count
[reply_to] and {replied_to}
), keyed as (
  insert into admissions (client_id, key, message_id, digest, created_at)
  select cast(:first_client as text), cast(:first_key as text), :id, :digest, {now} from standing
  where cast(:first_key as text) is not null
  on conflict do nothing
  returning 1
), second as (
  insert into admissions (client_id, key, message_id, digest, created_at)
  select cast(:second_client as text), cast(:second_key as text), :id, :digest, {now} from keyed
  where cast(:second_key as text) is not null
), message as (
  insert into messages ({message_columns})
  select {message_values} from standing
  where cast(:first_key as text) is null or exists (select 1 from keyed)
  returning seq, id, created_at, expires_at
), asked as materialized (
  select * from json_to_recordset(cast(:deliveries as json)) as a(n integer, id text, target_key text, carrier text,
    endpoint_id text, mailbox text, reach text, ack_mode text, max_attempts integer)
), placed as (
  insert into mailboxes (name, handoff_seq)
  select a.mailbox, 1 from asked a cross join message where a.carrier = 'inbox' order by a.mailbox
  on conflict (name) do update set handoff_seq = mailboxes.handoff_seq + 1
  returning name, handoff_seq
), aimed as (
  insert into targets (target_key, carrier)
  select a.target_key, a.carrier from asked a cross join message order by a.target_key
  on conflict do nothing
), delivered as (
  insert into deliveries ({delivery_columns})
  select a.id, m.id, a.target_key, a.carrier, a.endpoint_id, a.mailbox, a.reach, {first_state:a}, :rank, a.ack_mode,
    a.max_attempts, p.handoff_seq, case when a.carrier = 'inbox' then m.created_at end, m.expires_at, m.created_at,
    m.created_at
  from asked a cross join message m left join placed p on a.carrier = 'inbox' and p.name = a.mailbox
  order by a.n
  returning id, seq, handoff_seq
)
select m.seq, m.created_at, m.expires_at, d.id, d.seq, d.handoff_seq from message m left join delivered d on 1 = 1

-- On SQLite the writer is alone: what it looked at just before still stands, and further statements cost no round trip.
-- name: admission_insert [sqlite]
insert into admissions (client_id, key, message_id, digest, created_at) values (:client_id, :key, :id, :digest, :now)

-- name: message_insert [sqlite]
insert into messages ({message_columns}) values ({message_values})
returning seq, created_at, expires_at

-- name: delivery_insert [sqlite]
insert into targets (target_key, carrier) values (:target_key, :carrier) on conflict do nothing;
insert into deliveries ({delivery_columns})
select :id, :message_id, :target_key, a.carrier, :endpoint_id, :mailbox, :reach, {first_state:a}, :rank, a.ack_mode,
  :max_attempts, :place, case when a.carrier = 'inbox' then :now end, :expires_at, :now, :now
from (select :carrier as carrier, :ack_mode as ack_mode) a
returning id, seq, handoff_seq

-- name: mailbox_place [sqlite]
insert into mailboxes (name, handoff_seq) values (:mailbox, 1)
on conflict (name) do update set handoff_seq = mailboxes.handoff_seq + 1
returning handoff_seq

-- The delivery d leaves the endpoint o, which is dead, for n, which lives (RULINGS 29).
-- fragment: rebindable
d.id = :delivery and d.endpoint_id = :old and d.lease_id is null and d.state not in ('injected', 'acknowledged')
  and o.id = d.endpoint_id and not {live:o} and n.id = :new and {live:n}

-- What the delivery $1 becomes at the endpoint n: pending again if it waited for an acknowledgement that nobody can give
-- any more, unless an inbox has it at once. What had failed stays so.
-- fragment: rebound
endpoint_id = n.id, target_key = n.target_key, carrier = n.carrier, mailbox = coalesce(n.name, n.id), reach = n.reach,
state = case when $1.state = 'failed' then 'failed' else
  (select {first_state:a} from (select n.carrier as carrier, $1.ack_mode as ack_mode) a) end,
round = $1.round + case when $1.state = 'awaiting_ack' then 1 else 0 end,
ack_deadline = null, doubtful = false, next_attempt_at = null, updated_at = {now},
delivered_at = case when n.carrier = 'inbox' and $1.state <> 'failed' then coalesce($1.delivered_at, {now})
  else $1.delivered_at end

-- Whether it takes a new place at an inbox.
-- fragment: rebound_to_inbox
n.carrier = 'inbox' and d.state <> 'failed' and (d.handoff_seq is null or d.mailbox <> coalesce(n.name, n.id))

-- name: message_rebind [postgres]
with held as materialized (
  select d.id, d.state, d.mailbox, d.handoff_seq, o.id as old, n.id as new
  from deliveries d, endpoints o, endpoints n where {rebindable} for update of d, o
), ended as (
  update endpoints e set ended_at = coalesce(e.ended_at, {now}) from held where e.id = held.old
), cleared as (
  delete from attachments where endpoint_id in (select old from held)
), aimed as (
  insert into targets (target_key, carrier) select n.target_key, n.carrier from held d join endpoints n on n.id = d.new
  on conflict do nothing
), placed as (
  insert into mailboxes (name, handoff_seq)
  select coalesce(n.name, n.id), 1 from held d join endpoints n on n.id = d.new where {rebound_to_inbox}
  on conflict (name) do update set handoff_seq = mailboxes.handoff_seq + 1
  returning handoff_seq
)
update deliveries d set {rebound:d},
  -- As it was when its row was locked: what is made of an older one is checked too.
  handoff_seq = coalesce((select handoff_seq from placed), case when h.mailbox = coalesce(n.name, n.id) then h.handoff_seq end)
from held h join endpoints n on n.id = h.new where d.id = h.id
returning d.id

-- name: message_rebind [sqlite]
insert into mailboxes (name, handoff_seq)
select coalesce(n.name, n.id), 1 from deliveries d, endpoints o, endpoints n where {rebindable} and {rebound_to_inbox}
on conflict (name) do update set handoff_seq = mailboxes.handoff_seq + 1;
insert into targets (target_key, carrier)
select n.target_key, n.carrier from deliveries d, endpoints o, endpoints n where {rebindable}
on conflict do nothing;
update deliveries set {rebound:deliveries},
  handoff_seq = case when {rebound_to_inbox} then (select b.handoff_seq from mailboxes b where b.name = coalesce(n.name, n.id))
    when deliveries.mailbox = coalesce(n.name, n.id) then deliveries.handoff_seq end
from deliveries d, endpoints o, endpoints n where deliveries.id = d.id and {rebindable};
update endpoints set ended_at = coalesce(ended_at, :now)
where id = :old and exists (select 1 from deliveries d where d.id = :delivery and d.endpoint_id = :new);
delete from attachments where endpoint_id in (select e.id from endpoints e where e.id = :old and e.ended_at is not null);
select id from deliveries where id = :delivery and endpoint_id = :new

-- The rows of an inbox in hand-off order; the statement with since_id is for one that names no letter of it, and may read
-- the whole inbox.
-- fragment: letters
select {message:m}, {delivery:d}, {deferred:d} from deliveries d join messages m on m.id = d.message_id
where d.mailbox = :mailbox and d.handoff_seq > :after

-- name: inbox_page
{letters} order by d.handoff_seq limit :limit

-- name: inbox_after_id slow
{letters} and d.message_id {bytewise} > :since_id order by d.handoff_seq limit :limit

-- fragment: bytewise [postgres]
collate "C"

-- fragment: bytewise [sqlite]
collate binary

-- The place of a message in an inbox. Written so that the inbox's own index does not fit: it would be walked for the id.
-- name: inbox_place
select max(handoff_seq) from deliveries where message_id = :id and mailbox || '' = :mailbox

-- name: mailbox_get
select b.handoff_seq, b.read_seq,
  (select count(*) from (select 1 from deliveries d where d.mailbox = b.name and d.handoff_seq > b.read_seq limit :most) u)
from mailboxes b where b.name = :name

-- Never back, and never past what is there.
-- name: mailbox_read
update mailboxes set read_seq = {greatest}(read_seq, {least}(cast(:place as bigint), handoff_seq)) where name = :name
returning read_seq

-- Where these mailboxes stand: whoever waits for something new there looks once for all.
-- name: mailbox_places
select name, handoff_seq from mailboxes where name {among:names}
