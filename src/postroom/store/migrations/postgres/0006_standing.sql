-- How things stand. The notices that tell of a todo, for its story: who may send under that name is Postroom alone, while
-- anybody may choose a message's kind.
drop index messages_rings;
create index messages_notices on messages (correlation_id, seq) where created_by = 'postroom';

-- What is counted beside the deliveries that wait: those without their acknowledgement, and those that failed.
create index deliveries_unacknowledged on deliveries (carrier) where state = 'awaiting_ack';
create index deliveries_dead on deliveries (carrier, message_id) where state = 'failed' and reason <> 'cancelled';

-- The targets where something holds deliveries up, whichever did so first.
create index targets_busy on targets (busy_since) where busy_reason is not null;
