-- Version 4: strict lanes.

-- holds_lane  a claim has handed it out, and its type has strict lanes: it holds its lane as long as it is open
alter table treadle.open_item add column holds_lane boolean not null default false;
create index open_item_holder on treadle.open_item (type, tenant, lane) where holds_lane;

-- strict_types  types whose lanes are strict; `avoid` has a set of lanes for each of them alone
alter type treadle.demand add attribute strict_types text[];

-- The leases that have a permit of a `slots` limit of their own. It is counted in `permit` too.
create table treadle.lease_permit (
  name   text collate "C" not null,
  token  bigint not null,
  worker text collate "C" not null,
  no     bigint not null,              -- the item
  primary key (name, token)
);
create index lease_permit_worker on treadle.lease_permit (worker);
alter table treadle.lease_permit set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
  autovacuum_vacuum_cost_delay = 0);
