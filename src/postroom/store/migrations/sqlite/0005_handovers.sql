-- Work that one principal gave to another and that has ended: its creator is to be told. The row is made by the very
-- transaction that ends the todo, whichever verb or sweep that is, and goes with the admission of the message.
create table handovers (
  seq integer primary key autoincrement,
  todo_id text not null,
  queue text not null,
  title text not null,
  assignee text not null,
  owner text,
  creator text not null,
  state text not null check (state in ('done', 'failed')),
  reason text,
  error text,
  attempt integer not null,
  ended_at integer not null
) strict;

create trigger todos_handed_over after update of state on todos
when new.completed_at is not null and old.completed_at is null and new.assignee is not null and new.event_id is null
  and new.reason is not 'cancelled'
  and substr(new.assignee, 1, instr(new.assignee || '/', '/') - 1) <> new.created_by
begin
  insert into handovers (todo_id, queue, title, assignee, owner, creator, state, reason, error, attempt, ended_at)
  values (new.id, new.queue, new.title, new.assignee, coalesce(new.owner, old.owner), new.created_by, new.state,
    new.reason, new.error, new.attempt, new.completed_at);
end;
