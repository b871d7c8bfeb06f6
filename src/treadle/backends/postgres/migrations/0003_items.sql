-- Version 3: key policies, and when handlers began.

-- When the handler of the last attempt began. (`claimed`, and `started` of an ended item: when it was claimed.)
alter table treadle.open_item add column began float8;
alter table treadle.ended_item add column began float8;
alter type treadle.settlements add attribute ran float8[];
alter type treadle.item_state add attribute began float8;

-- The ids of the last new items that the holder of the key took something over from.
alter table treadle.key add column changed_by text[] collate "C";
alter type treadle.new_items
  add attribute key_policy smallint[],    -- 0 existing  1 replace  2 debounce  3 error; null: all are existing
  add attribute debounce_max float8[];
