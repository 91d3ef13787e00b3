-- The doorbell: which endpoint was rung for which queue, by which message, and when it may be rung again (RULINGS 34).
-- A row without a message says when its endpoint was last rung or last claimed: the longest idle one is rung first.
create table rings (
  queue text not null,
  endpoint_id text not null,
  message_id text,
  rung_at integer,
  next_at integer,
  step integer not null default 0 check (step between 0 and 3),
  own integer not null default 0 check (own in (0, 1)),
  claimed_at integer,
  primary key (queue, endpoint_id),
  check ((message_id is null) = (next_at is null)),
  check (message_id is null or rung_at is not null)
) strict;
create index rings_endpoint on rings (endpoint_id);

-- The rings that named a todo, for its story.
create index messages_rings on messages (correlation_id) where kind = 'queue.ring';

-- What somebody holds, by the token's part of the owner. The condition is written so that no other statement finds the
-- index to its taste, however little is known of the table.
create index todos_holder on todos (substr(owner, 1, instr(owner || '/', '/') - 1)) where state || '' = 'claimed';
