-- The status of items, as readers see it, and their groups.
create or replace function treadle.item_statuses(p_tenant text[], p_id text[])
returns table (no bigint, id text, tenant text, group_id text, state smallint)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select i.no, i.id, i.tenant, i.group_id,
      coalesce(case when o.verdict is not null then o.shown_status when o.status = 3 then 2 else o.status end,
        e.outcome)::smallint
    from treadle.item i
    left join treadle.open_item o on o.no = i.no
    left join treadle.ended_item e on e.no = i.no
    where i.id = any(p_id) and i.tenant = any(p_tenant) and i.type is not null;
end $$;
