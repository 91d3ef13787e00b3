-- name: assignment_add
insert into assignments (todo_id, assignee, giver) values (:todo_id, :assignee, :giver) returning seq

-- Who gave a todo to its assignee just now, in the same transaction.
-- name: assignment_giver
update assignments set giver = :giver where todo_id = :todo_id and giver is null returning seq

-- Whether anybody is to be told of anything: most looks find nothing.
-- name: assignment_due
select 1 from assignments limit 1

-- The oldest that nobody else tells of just now; gone with the transaction that takes them.
-- name: assignment_take
with found as materialized (
  select seq from assignments order by seq limit :limit {lock}
)
delete from assignments where seq in (select seq from found)
returning seq, todo_id, assignee, giver
