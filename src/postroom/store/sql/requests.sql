-- name: request_insert
insert into requests (principal, key, verb, digest, created_at) values (:principal, :key, :verb, :digest, {now})
on conflict do nothing
returning key

-- name: request_get
select verb, digest, answer from requests where principal = :principal and key = :key

-- name: request_answer
update requests set answer = :answer where principal = :principal and key = :key
returning key
