-- Groups as they are shown. That of a lone root has no row: its item says it all.
create or replace function treadle.groups(p_nos bigint[]) returns setof treadle.shown_group
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select i.no, i.id, i.tenant, i.type, coalesce(g.open, case when j.no is not null then 1 else 0 end),
      case when g.no is not null then g.value when d.flags & 1 <> 0 then d.result end,
      coalesce(g.contributed, d.flags & 1 <> 0, false), coalesce(g.final, d.flags & 2 <> 0, false),
      coalesce(g.version, d.flags & 1, 0), case when g.no is not null then g.ended else d.ended end,
      case when g.no is null then case when d.outcome in (7, 8) then i.no end
           when g.open > 0 or g.dead + g.cancelled = 0 then null
           else coalesce(
             case when d.outcome = 7 then i.no end,
             case when g.dead > 0 then (
               select m.no from treadle.item m join treadle.done e on e.no = m.no and e.outcome = 7
               where m.grp = i.no order by m.no limit 1) end,
             case when d.outcome = 8 then i.no end,
             (select m.no from treadle.item m join treadle.done e on e.no = m.no and e.outcome = 8
              where m.grp = i.no order by m.no limit 1)) end
    from unnest(p_nos) n(no)
    join treadle.item i on i.no = n.no and i.grp is null
    left join treadle.job j on j.no = n.no
    left join treadle.done d on d.no = n.no
    left join treadle.grp g on g.no = n.no;
end $$;

-- Of the items and groups that somebody waits for: the numbers of those that have ended, and which are missing.
create or replace function treadle.ended(
  i_tenant text[], i_id text[], g_tenant text[], g_id text[],
  out items bigint[], out groups bigint[], out no_items int[], out no_groups int[])
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  select array_agg(d.no) filter (where d.no is not null), array_agg(u.place::int) filter (where i.no is null)
    into items, no_items
    from unnest(i_tenant, i_id) with ordinality u(tenant, id, place)
    left join treadle.item i on i.id = u.id and i.tenant = u.tenant and i.type is not null
    left join treadle.done d on d.no = i.no;
  select array_agg(i.no) filter (where case when r.no is not null then r.open = 0 else d.no is not null end),
         array_agg(u.place::int) filter (where i.no is null)
    into groups, no_groups
    from unnest(g_tenant, g_id) with ordinality u(tenant, id, place)
    left join treadle.item i on i.id = u.id and i.tenant = u.tenant and i.type is not null and i.grp is null
    left join treadle.grp r on r.no = i.no
    left join treadle.done d on d.no = i.no;
end $$;
