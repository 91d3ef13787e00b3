-- name: rule_set_current
select source, version, rules, created_by, created_at from rule_sets where source = :source
order by version desc limit 1

-- Versions have no gaps: whoever adds the one after the version it read finds out here that another was first.
-- name: rule_set_insert
insert into rule_sets (source, version, rules, created_by, created_at)
values (:source, :version, :rules, :created_by, {now})
on conflict do nothing
returning source, version, rules, created_by, created_at
