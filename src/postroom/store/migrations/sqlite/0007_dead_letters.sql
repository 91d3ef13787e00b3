-- Todos that became dead letters: the channel `dead-letters` is to be told. The row is made by the very transaction that
-- ends the todo, where somebody is subscribed then, and goes with the admission of the message.
create table dead_letters (
  seq integer primary key autoincrement,
  todo_id text not null,
  queue text not null,
  title text not null,
  reason text not null check (reason in ('exhausted', 'refused')),
  error text,
  attempt integer not null,
  max_attempts integer not null,
  ended_at integer not null
) strict;

create trigger todos_died after update of state on todos
when new.state = 'failed' and new.completed_at is not null and old.completed_at is null
  and new.reason in ('exhausted', 'refused')
begin
  insert into dead_letters (todo_id, queue, title, reason, error, attempt, max_attempts, ended_at)
  select new.id, new.queue, new.title, new.reason, new.error, new.attempt, new.max_attempts, new.completed_at
  where exists (select 1 from attachments where what = 'channel' and name = 'dead-letters');
end;
