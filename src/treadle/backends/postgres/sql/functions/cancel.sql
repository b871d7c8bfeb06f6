-- Cancel: end items and all their open descendants, with the open members of the nested groups that they close.
--
-- p_only_open  leave out items that have ended, and their descendants. Before, it was not passed
create or replace function treadle.cancel(p_ids text[], p_tenant text, p_only_open boolean default false)
returns table (item treadle.item_state, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  named bigint[] := treadle.find_items(p_ids, p_tenant); family bigint[]; again bigint[]; nos bigint[];
begin
  if p_only_open then
    named := array(select o.no from treadle.open_item o where o.no = any(named) order by o.no for update);
  end if;
  family := treadle.descendants(named);
  loop
    select array_agg(x.no) into nos from (
      select o.no from treadle.open_item o where o.no = any(family) order by o.no for update) x;
    -- An item may have settled while this waited for its lock, and queued more.
    again := treadle.descendants(named);
    exit when cardinality(again) is not distinct from cardinality(family);
    family := again;
  end loop;
  -- Answer the items as they were, then end them.
  if nos is not null then
    return query select s, null::treadle.effects from treadle.read_items(nos, false) s;
    return query select null::treadle.item_state, c
      from treadle.end_items(treadle.clock(), nos, 8::smallint, 0::smallint, null) c;
  end if;
end $$;

-- Items, what their settlements queued, the members of the nested groups that they close, and so on.
create or replace function treadle.descendants(p_nos bigint[]) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return (
    with recursive family(no, id, tenant) as (
      select i.no, i.id, i.tenant from treadle.item i where i.no = any(p_nos)
      union
      select c.no, c.id, c.tenant from family f, lateral (
        select i.no, i.id, i.tenant from treadle.item i where i.parent = f.id and i.tenant = f.tenant
        union all
        select i.no, i.id, i.tenant from treadle.item_group g join treadle.item i on i.group_no = g.no
        where g.no = f.no and g.outermost is not null) c
    )
    select array_agg(f.no) from family f);
end $$;
