-- Version 7: what the runs of schedules raised.

-- error  in a line; null: the run did not fail
alter table treadle.schedule_run add column error text collate "C";

-- These functions have other parameters now. Processes of version 6 call the new `fire` without its last one.
drop function if exists treadle.fire(text, float8, float8, treadle.new_items, boolean, boolean, int);
drop function if exists treadle.record_run(text, float8, text, text);
drop function if exists treadle.overview(text, int);
drop function if exists treadle.count_dead(text, int);
