-- Whether anybody is to be told of anything: most looks find nothing.
-- name: handover_due
select 1 from handovers limit 1

-- The oldest that nobody else tells of just now; gone with the transaction that takes them.
-- name: handover_take
with found as materialized (
  select seq from handovers order by seq limit :limit {lock}
)
delete from handovers where seq in (select seq from found)
returning seq, todo_id, queue, title, assignee, owner, creator, state, reason, error, attempt, ended_at
