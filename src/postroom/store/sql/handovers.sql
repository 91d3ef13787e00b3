-- Whether anybody is to be told of anything: most looks find nothing.
-- name: handover_due
select exists (select 1 from handovers), exists (select 1 from dead_letters)

-- The oldest that nobody else tells of just now; gone with the transaction that takes them.
-- name: handover_take
with found as materialized (
  select seq from handovers order by seq limit :limit {lock}
)
delete from handovers where seq in (select seq from found)
returning seq, todo_id, queue, title, assignee, owner, creator, state, reason, error, attempt, ended_at

-- The same for dead letters.
-- name: dead_letter_take
with found as materialized (
  select seq from dead_letters order by seq limit :limit {lock}
)
delete from dead_letters where seq in (select seq from found)
returning seq, todo_id, queue, title, reason, error, attempt, max_attempts, ended_at
