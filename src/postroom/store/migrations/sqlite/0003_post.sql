-- The post: endpoints, messages, their deliveries, the targets they go to and the mailboxes that show them. Times are
-- integer milliseconds UTC. The CHECKs repeat the lifecycle, so that no statement can break it unseen.

alter table tokens add column speaks_as text not null default '[]';

create table endpoints (
  seq integer primary key autoincrement,
  id text not null unique,
  name text,
  carrier text not null check (carrier in ('opencode', 'tmux', 'channel', 'inbox', 'webhook')),
  address text not null,
  target_key text not null,
  reach text not null,
  ack_mode text not null check (ack_mode in ('injected', 'acknowledged')),
  max_attempts integer not null check (max_attempts between 1 and 10),
  spill integer not null default 0 check (spill in (0, 1)),
  rings integer not null default 1 check (rings in (0, 1)),
  pid integer,
  created_by text not null,
  created_at integer not null,
  seen_at integer not null,
  ended_at integer
) strict;
-- One instance stands at a place: the next one there ends it.
create unique index endpoints_target on endpoints (target_key) where ended_at is null;
create index endpoints_name on endpoints (name) where ended_at is null and name is not null;
create index endpoints_ended on endpoints (ended_at) where ended_at is not null;

-- What an endpoint listens to. Rows go when it ends, so that a look-up by name meets none of the dead.
create table attachments (
  what text not null check (what in ('repository', 'queue', 'channel')),
  name text not null,
  endpoint_id text not null,
  primary key (what, name, endpoint_id)
) strict;
create index attachments_endpoint on attachments (endpoint_id);

create table messages (
  seq integer primary key autoincrement,
  id text not null unique,
  client_id text,
  idempotency_key text,
  digest text not null,
  sender text not null,
  addressed text,
  channel text,
  kind text not null,
  priority text not null check (priority in ('urgent', 'normal', 'low')),
  reply_to text,
  payload text not null,
  ack_mode text not null check (ack_mode in ('injected', 'acknowledged')),
  metadata text,
  correlation_id text,
  sender_repo text,
  target_repo text,
  provenance text,
  created_by text not null,
  created_at integer not null,
  expires_at integer,
  check ((client_id is null) = (idempotency_key is null))
) strict;
create index messages_created on messages (created_at);
create index messages_reply on messages (reply_to) where reply_to is not null;
create index messages_sender on messages (sender, seq);
create index messages_client on messages (client_id, seq) where client_id is not null;
create index messages_repo on messages (target_repo, seq) where target_repo is not null;
create index messages_channel on messages (channel, seq) where channel is not null;

create table deliveries (
  seq integer primary key autoincrement,
  id text not null unique,
  message_id text not null,
  target_key text not null,
  carrier text not null check (carrier in ('opencode', 'tmux', 'channel', 'inbox', 'webhook')),
  endpoint_id text,
  mailbox text not null,
  reach text not null,
  state text not null default 'pending' check (state in ('pending', 'awaiting_ack', 'injected', 'acknowledged', 'failed')),
  rank integer not null check (rank between 0 and 2),
  ack_mode text not null check (ack_mode in ('injected', 'acknowledged')),
  attempt_count integer not null default 0 check (attempt_count >= 0),
  max_attempts integer not null check (max_attempts between 1 and 10),
  round integer not null default 0 check (round >= 0),
  lease_id text,
  lease_expires_at integer,
  doubtful integer not null default 0 check (doubtful in (0, 1)),
  next_attempt_at integer check (next_attempt_at is null or state = 'pending'),
  ack_deadline integer check (ack_deadline is null or state = 'awaiting_ack'),
  reason text check (reason in ('ack_timeout', 'exhausted', 'unconfirmed', 'no_such_target', 'cancelled', 'expired')),
  last_failure_reason text,
  handoff_seq integer,
  delivered_at integer,
  seen_at integer,
  answered_at integer,
  acknowledged_at integer,
  expires_at integer,
  created_at integer not null,
  updated_at integer not null,
  check ((lease_id is null) = (lease_expires_at is null)),
  check (lease_id is null or state in ('pending', 'acknowledged')),
  check (lease_id is null or next_attempt_at is null),
  check ((state = 'failed') = (reason is not null)),
  check ((state = 'acknowledged') = (acknowledged_at is not null)),
  check (state not in ('injected', 'awaiting_ack', 'acknowledged') or handoff_seq is not null)
) strict;
-- At most one courier holds a target, in the whole installation (RULINGS 22).
create unique index deliveries_leased on deliveries (target_key) where lease_id is not null;
create unique index deliveries_fan_out on deliveries (message_id, target_key);
-- The two arms of a courier's look at a target: in exact order what was never tried, by its time what failed.
create index deliveries_ready on deliveries (target_key, rank, seq)
  where state = 'pending' and lease_id is null and next_attempt_at is null;
create index deliveries_delayed on deliveries (target_key, next_attempt_at)
  where state = 'pending' and lease_id is null and next_attempt_at is not null;
create index deliveries_lapse on deliveries (lease_expires_at) where lease_expires_at is not null;
create index deliveries_ack on deliveries (ack_deadline) where ack_deadline is not null;
create index deliveries_expiry on deliveries (expires_at) where state = 'pending' and expires_at is not null;
create index deliveries_inbox on deliveries (mailbox, handoff_seq) where handoff_seq is not null;
create index deliveries_endpoint on deliveries (endpoint_id, seq) where endpoint_id is not null;

create table targets (
  target_key text primary key,
  carrier text not null,
  turn_delivery text,
  turn_since integer,
  not_before integer,
  busy_reason text,
  busy_since integer,
  check ((turn_delivery is null) = (turn_since is null)),
  check ((busy_reason is null) = (busy_since is null))
) strict;
create index targets_turn on targets (turn_since) where turn_delivery is not null;

-- handoff_seq: the last place given in it; read_seq: up to where it was read.
create table mailboxes (
  name text primary key,
  handoff_seq integer not null default 0,
  read_seq integer not null default 0
) strict;

-- What was ever admitted, under its own id (client_id empty) or a client's key; outlives its message (RULINGS 15).
create table admissions (
  client_id text not null,
  key text not null,
  message_id text not null,
  digest text not null,
  created_at integer not null,
  primary key (client_id, key)
) strict;
create index admissions_created on admissions (created_at);

-- The swarm's own table, for operators who know it by these names (RULINGS 39).
create view swarm_messages as
select m.id as msg_id, m.sender as from_session, m.addressed as to_session, m.channel, m.kind, m.priority, m.reply_to,
  m.payload,
  case when d.handed > 0 then 'handed_off' when d.waiting > 0 or d.n is null then 'queued' else 'failed' end as state,
  coalesce(d.attempts, 0) as attempts,
  case when d.waiting > 0 then coalesce(d.next_attempt_at, m.created_at) end as next_retry_at,
  m.created_at, coalesce(d.updated_at, m.created_at) as updated_at, d.handed_off_at
from messages m left join (
  select message_id, count(*) as n,
    count(*) filter (where state in ('injected', 'awaiting_ack', 'acknowledged')) as handed,
    count(*) filter (where state = 'pending') as waiting,
    max(attempt_count) as attempts, min(next_attempt_at) as next_attempt_at, max(updated_at) as updated_at,
    min(delivered_at) as handed_off_at
  from deliveries group by message_id) d on d.message_id = m.id;
