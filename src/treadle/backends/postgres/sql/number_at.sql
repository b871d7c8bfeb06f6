-- The number from which on items were queued at an instant or later: numbers and instants grow together, so
-- it is found in some thirty looks, however many items there are. Those that were stored at the same time may
-- be in another order: whoever asks allows for that, and looks at the instants themselves as well.
create or replace function treadle.number_at(p_at float8) returns bigint
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  low bigint; high bigint; middle bigint; found record;
begin
  select min(i.no), max(i.no) + 1 into low, high from treadle.item i;
  while low < high loop
    middle := low + (high - low) / 2;
    select i.no, i.queued into found from treadle.item i where i.no >= middle and i.queued is not null
      order by i.no limit 1;
    if found.no is null or found.no >= high or found.queued >= p_at then
      high := middle;
    else
      low := found.no + 1;
    end if;
  end loop;
  return coalesce(low, 0);
end $$;
