-- The first number of an item that was queued at an instant or later. Numbers and instants grow together, so
-- a binary search finds it in some thirty steps, however many items there are. The numbers of items that were
-- stored at the same time may be in another order than their instants: the caller adds a margin, and compares
-- the instants themselves as well.
create or replace function treadle.first_number_since(p_at float8) returns bigint
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  low bigint; high bigint; middle bigint; probe record;
begin
  select min(i.no), max(i.no) + 1 into low, high from treadle.item i;
  while low < high loop
    middle := low + (high - low) / 2;
    select i.no, i.queued into probe from treadle.item i where i.no >= middle and i.queued is not null
      order by i.no limit 1;
    if probe.no is null or probe.no >= high or probe.queued >= p_at then
      high := middle;
    else
      low := probe.no + 1;
    end if;
  end loop;
  return coalesce(low, 0);
end $$;
