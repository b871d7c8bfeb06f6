-- Version 4: strict lanes.

-- holds_lane  a claim has handed it out, and its type has strict lanes: it holds its lane as long as it is open
alter table treadle.open_item add column holds_lane boolean not null default false;
create index open_item_holder on treadle.open_item (type, tenant, lane) where holds_lane;

-- strict_types  types whose lanes are strict; `avoid` has a set of lanes for each of them alone
alter type treadle.demand add attribute strict_types text[];
