-- Groups as readers see them. A group of one item has no row: its state is that of the item. A nested group always
-- has a row, with the number of the item that closes it. A group whose root was pruned has the root's id in its row.
create or replace function treadle.read_groups(p_nos bigint[]) returns setof treadle.group_state
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select n.no, coalesce(i.id, g.id), coalesce(i.tenant, g.tenant), coalesce(i.type, g.type),
      coalesce(g.open, case when o.no is not null then 1 else 0 end),
      case when g.no is not null then g.value when e.flags & 1 <> 0 then e.result end,
      coalesce(g.contributed, e.flags & 1 <> 0, false), coalesce(g.final, e.flags & 2 <> 0, false),
      coalesce(g.version, e.flags & 1, 0), case when g.no is not null then g.ended else e.ended end,
      coalesce(g.failed, case when e.outcome = 7 and e.flags & 8 = 0 then 1 else 0 end),
      case when g.failed > 0 then array(
             select f.no from treadle.ended_item f where f.group_no = n.no and f.flags & 8 = 0
             order by f.group_no, f.ended, f.no limit 10)
           when g.no is null and e.outcome = 7 and e.flags & 8 = 0 then array[i.no] end,
      case when g.no is null then case when e.outcome = 8 then i.no end
           when g.open = 0 and g.cancelled > 0 then coalesce(
             case when i.group_no is null and e.outcome = 8 then i.no end,
             (select m.no from treadle.item m join treadle.ended_item f on f.no = m.no and f.outcome = 8
              where m.group_no = n.no order by m.no limit 1)) end,
      i.group_id
    from unnest(p_nos) n(no)
    left join treadle.item i on i.no = n.no
    left join treadle.open_item o on o.no = n.no
    left join treadle.ended_item e on e.no = n.no
    left join treadle.item_group g on g.no = n.no
    where case when i.no is null then g.id is not null else i.group_no is null or g.no is not null end;
end $$;

-- Members that a group has had.
create or replace function treadle.group_total(p_no bigint) returns int
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  return coalesce((select g.total from treadle.item_group g where g.no = p_no), 1);
end $$;

-- Of the items and groups that a caller waits for: the numbers of those that have ended, and the places of
-- those that do not exist.
create or replace function treadle.find_ended(
  p_item_tenant text[], p_item_id text[], p_group_tenant text[], p_group_id text[],
  out items bigint[], out groups bigint[], out missing_items int[], out missing_groups int[])
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
  select array_agg(e.no) filter (where e.no is not null), array_agg(u.place::int) filter (where i.no is null)
    into items, missing_items
    from unnest(p_item_tenant, p_item_id) with ordinality u(tenant, id, place)
    left join treadle.item i on i.id = u.id and i.tenant = u.tenant and i.type is not null
    left join treadle.ended_item e on e.no = i.no;
  select array_agg(coalesce(i.no, g.no)) filter (where case when g.no is not null then g.open = 0
                                            else i.group_no is null and e.no is not null end),
         array_agg(u.place::int) filter (where g.no is null and (i.no is null or i.group_no is not null))
    into groups, missing_groups
    from unnest(p_group_tenant, p_group_id) with ordinality u(tenant, id, place)
    left join treadle.item i on i.id = u.id and i.tenant = u.tenant and i.type is not null
    left join lateral (
      select p.no from treadle.item_group p where i.no is null and p.id = u.id and p.tenant = u.tenant
      order by p.no desc limit 1) p on true
    left join treadle.item_group g on g.no = coalesce(i.no, p.no)
    left join treadle.ended_item e on e.no = i.no;
end $$;
