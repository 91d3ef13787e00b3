-- Events, todos and what belongs to them: the same tables as on PostgreSQL, with this engine's types. `autoincrement`,
-- since a cursor must never meet a number twice.

create table events (
  seq integer primary key autoincrement,
  id text not null unique,
  source text not null,
  provider text not null,
  delivery_key text not null,
  kind text not null,
  action text,
  title text not null,
  state text not null check (state in ('routed', 'ignored', 'unparsed', 'held')),
  reason text,
  verification text not null,
  digest text not null,
  deliveries integer not null default 1,
  received_at integer not null,
  last_delivery_at integer not null,
  headers text not null,
  body_json text,
  body blob not null
) strict;
create unique index events_delivery on events (source, delivery_key);

create table todos (
  seq integer primary key autoincrement,
  id text not null unique,
  queue text not null,
  source text not null,
  kind text not null default '',
  title text not null,
  event_id text,
  idempotency_key text,
  assignee text,
  state text not null default 'pending' check (state in ('pending', 'claimed', 'done', 'failed')),
  owner text,
  lease_id text,
  lease_expires_at integer,
  claim_key text,
  attempt integer not null default 0 check (attempt >= 0),
  max_attempts integer not null default 5 check (max_attempts between 1 and 100),
  priority integer not null default 0 check (priority between -100 and 100),
  available_at integer check (available_at is null or state = 'pending'),
  next_retry_at integer check (next_retry_at is null or state = 'failed'),
  reason text check (reason is null or (state = 'failed' and reason in ('exhausted', 'refused', 'cancelled'))),
  error text,
  created_by text not null,
  created_at integer not null,
  updated_at integer not null,
  claimed_at integer,
  completed_at integer,
  payload text,
  result text,
  check ((state = 'claimed') = (lease_expires_at is not null)),
  check (state not in ('claimed', 'done') or (owner is not null and lease_id is not null and claimed_at is not null)),
  check ((state = 'done' or (state = 'failed' and next_retry_at is null)) = (completed_at is not null)),
  check ((state = 'failed' and next_retry_at is null) = (reason is not null)),
  check (claim_key is null or state = 'claimed')
) strict;
-- One index an arm of the claim scan, each in exact claim order or by the time it falls due.
create index todos_ready on todos (queue, priority desc, created_at, seq)
  where state = 'pending' and available_at is null and assignee is null;
create index todos_assigned on todos (queue, assignee, priority desc, created_at, seq)
  where state = 'pending' and available_at is null and assignee is not null;
create index todos_delayed on todos (queue, available_at)
  where state = 'pending' and available_at is not null;
create index todos_parked on todos (queue, next_retry_at)
  where state = 'failed' and next_retry_at is not null;
create index todos_leased on todos (queue, lease_expires_at)
  where state = 'claimed';
create unique index todos_dedupe on todos (queue, idempotency_key)
  where idempotency_key is not null and state <> 'done' and not (state = 'failed' and next_retry_at is null);
create index todos_claim_key on todos (owner, claim_key)
  where state = 'claimed' and claim_key is not null;
create index todos_dead on todos (queue, completed_at)
  where state = 'failed' and next_retry_at is null;
create index todos_done on todos (queue, completed_at)
  where state = 'done';

create table attempts (
  todo_id text not null,
  lease_id text not null,
  owner text,
  claimed_at integer,
  ended_at integer not null,
  outcome text not null check (outcome in ('failed', 'released', 'lapsed', 'cancelled')),
  note text,
  primary key (todo_id, lease_id)
) strict;

create table event_todos (
  event_id text not null,
  todo_id text not null,
  queue text not null,
  rule text not null,
  created integer not null check (created in (0, 1)),
  primary key (event_id, todo_id, rule)
) strict;
create index event_todos_todo on event_todos (todo_id);

create table queues (
  name text primary key,
  paused integer not null default 0 check (paused in (0, 1)),
  lease_ms integer,
  max_attempts integer,
  backoff_ms integer,
  backoff_cap_ms integer,
  max_in_flight integer,
  keep_done_ms integer,
  keep_dead_ms integer
) strict;

create table tokens (
  id text primary key,
  name text not null,
  role text not null check (role in ('admin', 'agent')),
  queues text not null,
  digest text not null unique,
  created_at integer not null,
  revoked_at integer
) strict;
create unique index tokens_name on tokens (name) where revoked_at is null;

create table requests (
  principal text not null,
  key text not null,
  verb text not null,
  digest text not null,
  answer text,
  created_at integer not null,
  primary key (principal, key)
) strict;
create index requests_created on requests (created_at);
