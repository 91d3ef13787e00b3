-- The answers to a message in the order of their admission: whoever waits for the first one looks for it each second.
drop index messages_reply;
create index messages_reply on messages (reply_to, seq) where reply_to is not null;

-- Work that was given to somebody, who is to hear of it. The row is made by the very transaction that gives it, and goes
-- with the admission of the message. There is no trigger on a todo's state: that would weigh on every claim and ending.
-- giver: whoever made the todo, or assigned it later; null until that is written down.
create table assignments (
  seq integer primary key autoincrement,
  todo_id text not null,
  assignee text not null,
  giver text
) strict;

-- Those of which it is not written down yet who gave them.
create index assignments_unsigned on assignments (todo_id) where giver is null;

create trigger todos_assigned after insert on todos
when new.assignee is not null
  and (new.event_id is not null or substr(new.assignee, 1, instr(new.assignee || '/', '/') - 1) <> new.created_by)
begin
  insert into assignments (todo_id, assignee, giver) values (new.id, new.assignee, new.created_by);
end;

create trigger todos_assigned_later after update of assignee on todos
when new.assignee is not null and new.assignee is not old.assignee
begin
  insert into assignments (todo_id, assignee) values (new.id, new.assignee);
end;
