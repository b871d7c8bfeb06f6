-- Version 10: statistics count lost attempts.

alter table treadle.stat add column lost bigint not null default 0;

drop function if exists treadle.add_stats(
  int[], float8[], text[], text[], bigint[], bigint[], bigint[], bigint[], bigint[], bigint[], numeric[], numeric[]);
drop function if exists treadle.read_stats(int, float8, float8, text, text, int, text);
