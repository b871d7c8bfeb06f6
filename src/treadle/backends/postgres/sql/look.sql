-- The status of items, as it is shown, and their groups.
create or replace function treadle.look(p_tenant text[], p_id text[])
returns table (no bigint, id text, tenant text, group_id text, state smallint)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select i.no, i.id, i.tenant, i.group_id,
      coalesce(case when j.verdict is not null then j.was when j.status = 3 then 2 else j.status end,
        d.outcome)::smallint
    from treadle.item i
    left join treadle.job j on j.no = i.no
    left join treadle.done d on d.no = i.no
    where i.id = any(p_id) and i.tenant = any(p_tenant) and i.type is not null;
end $$;
