-- A role that can count items, and can see nothing of their contents.
create role keda login;
grant usage on schema treadle to keda;
grant select on treadle.open_item, treadle.pause to keda;
