-- What agents and people wrote about a todo, for its story; what Postroom itself wrote has an index of its own.
create index messages_about on messages (correlation_id, seq)
where substr(correlation_id, 1, 3) = 'td_' and created_by <> 'postroom';
