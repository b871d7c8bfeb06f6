-- Version 7: how often handlers have deferred items.

alter table treadle.open_item add column deferrals int not null default 0;
alter table treadle.ended_item add column deferrals int;  -- null: none
alter type treadle.item_state add attribute deferrals int;

-- Both answer one column more, the last one. Processes of version 6 do not read it.
drop function if exists treadle.claim(text, int, treadle.demand, float8, treadle.last_served);
drop function if exists treadle.unknown_leases(text, bigint[]);
