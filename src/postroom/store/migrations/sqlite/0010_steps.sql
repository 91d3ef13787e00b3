-- What was done to a todo, an event or a message and is not to be seen in its row any more: retried, assigned, changed,
-- replayed, cancelled; and what a retry wiped away. Append only, rare, and gone with what it is about.
create table steps (
  seq integer primary key autoincrement,
  about text not null,
  at integer not null,
  what text not null,
  detail text not null
) strict;
create index steps_about on steps (about, seq);

-- A delivery that had failed and goes on: by a retry, a late acknowledgement, or a late reading. How it had failed.
create trigger deliveries_revived after update of state on deliveries
when old.state = 'failed' and new.state <> 'failed'
begin
  insert into steps (about, at, what, detail)
  values (old.message_id, old.updated_at, 'failed', 'to ' || old.mailbox || ' by ' || old.carrier || ': ' || old.reason
    || case when old.attempt_count > 1 then ', attempts: ' || old.attempt_count else '' end
    || case when old.reason = 'cancelled' then '' else coalesce(', last failure: ' || old.last_failure_reason, '') end);
end;
