-- fragment: token
id, name, role, queues, created_at, revoked_at, speaks_as

-- name: token_insert
insert into tokens (id, name, role, queues, speaks_as, digest, created_at)
values (:id, :name, :role, :queues, :speaks_as, :digest, {now})
on conflict (name) where revoked_at is null do nothing
returning {token}

-- name: token_by_digest
select {token} from tokens where digest = :digest and revoked_at is null

-- name: token_by_name
select {token} from tokens where name = :name and revoked_at is null

-- name: tokens_named
select name, queues from tokens where name {among:names} and revoked_at is null

-- name: token_list
select {token} from tokens order by id

-- name: token_revoke
update tokens set revoked_at = {now} where (id = :id or name = :id) and revoked_at is null
returning {token}

-- What a revoked token had claimed goes back to the queue; the attempt is entered as released.
-- name: token_release_claims [postgres]
with held as materialized (
  select id, lease_id, owner, claimed_at from todos where state = 'claimed' and {owned} order by id for update
), noted as (
  insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome, note)
  select id, lease_id, owner, claimed_at, {now}, 'released', 'the token was revoked' from held on conflict do nothing
)
update todos t set state = 'pending', owner = null, lease_id = null, lease_expires_at = null, claim_key = null,
  claimed_at = null, attempt = greatest(t.attempt - 1, 0), updated_at = {now}
from held where t.id = held.id
returning t.id, t.queue

-- name: token_release_claims [sqlite]
insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome, note)
select id, lease_id, owner, claimed_at, :now, 'released', 'the token was revoked' from todos where state = 'claimed' and {owned}
on conflict do nothing;
update todos set state = 'pending', owner = null, lease_id = null, lease_expires_at = null, claim_key = null,
  claimed_at = null, attempt = max(attempt - 1, 0), updated_at = :now
where state = 'claimed' and {owned}
returning id, queue
