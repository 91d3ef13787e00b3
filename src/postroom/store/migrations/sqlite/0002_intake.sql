-- What an event's rules decided and under which version of them, and the rules that are edited while a daemon serves.

alter table events add column suspected_replay integer not null default 0 check (suspected_replay in (0, 1));
alter table events add column trace text not null default '[]';
alter table events add column rules_version integer;
create index events_digest on events (source, digest);
-- Held events are few and looked for among all the others.
create index events_held on events (seq) where state = 'held';

-- Append only: the highest version of a source is the one in force.
create table rule_sets (
  source text not null,
  version integer not null check (version >= 1),
  rules text not null,
  created_by text not null,
  created_at integer not null,
  primary key (source, version)
) strict;
