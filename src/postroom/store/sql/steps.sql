-- name: step_add
insert into steps (about, at, what, detail) values (:about, coalesce(cast(:at as bigint), {now}), :what, :detail)
returning seq

-- The newest of these stories, the last one first. One step for both would let the planner walk all steps for the sake
-- of their order.
-- name: steps_of
with found as materialized (
  select seq, about, at, what, detail from steps where about {among:ids}
)
select about, at, what, detail from found order by seq desc limit :limit

-- name: steps_forget
delete from steps where about {among:ids}
