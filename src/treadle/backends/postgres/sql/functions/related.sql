-- What has to do with an item, a limited number of each kind, in the order of submission.
--
-- kind  0 the item itself  1 a child: it names the item as its parent  2 a dependent: it names the item, or the group of
--       which it is the root, in `after`
--
-- Of very many of them, some of the first are found.
create or replace function treadle.related_items(p_id text, p_tenant text, p_count int)
returns table (kind int, id text, type text, status smallint)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  most constant int := 5000; of_tenant text;
begin
  select i.tenant into of_tenant from treadle.item i where i.no = (treadle.find_items(array[p_id], p_tenant))[1];
  if of_tenant is null then
    return;
  end if;
  return query
    select r.kind, i.id, i.type,
      coalesce(case when o.verdict is not null then o.shown_status when o.status = 3 then 2 else o.status end,
        e.outcome)::smallint
    from (
      select 0 as kind, (treadle.find_items(array[p_id], of_tenant))[1] as no
      union all
      (select 1, c.no from (
         select i.no from treadle.item i where i.parent = p_id and i.tenant = of_tenant limit most) c
       order by c.no limit p_count)
      union all
      (select 2, d.no from (
         select i.no from treadle.item i
         where i.after && array[p_id, chr(30) || p_id] collate "C" and i.after is not null and i.tenant = of_tenant
           and i.type is not null limit most) d
       order by d.no limit p_count)) r
    join treadle.item i on i.no = r.no
    left join treadle.open_item o on o.no = r.no
    left join treadle.ended_item e on e.no = r.no
    order by r.kind, r.no;
end $$;
