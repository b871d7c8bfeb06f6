-- Nested groups of new items.

-- For each row the number of its group: that of the nested group that it joins, else the one that it has.
create or replace function treadle.nested_group_numbers(p_nos bigint[], items treadle.new_items) returns bigint[]
language plpgsql as $$
#variable_conflict use_column
declare
  n constant int := cardinality(items.id);
begin
  return (
    select array_agg(coalesce(c.no, m.group_no) order by m.row)
    from unnest(treadle.spread(items.owner, n), treadle.spread(items.group_id, n), items.group_no) with ordinality
      m(owner, group_id, group_no, row)
    left join unnest(p_nos, treadle.spread(items.owner, n), items.id, treadle.spread(items.closes, n))
      c(no, owner, id, closes)
      on c.closes and c.owner = m.owner and c.id = m.group_id);
end $$;

-- Items that close nested groups wait for new members by the group, not by their names: leave these out.
create or replace function treadle.without_members(items treadle.new_items) returns treadle.new_items
language plpgsql as $$
#variable_conflict use_column
declare
  found record;
begin
  for found in
    select c.row, string_agg(a.name, chr(31) order by a.place) filter (where m.id is null) as after,
      count(m.id)::int as members
    from unnest(items.owner, items.id, items.closes, items.after) with ordinality c(owner, id, closes, after, row)
    cross join lateral unnest(treadle.parts(c.after)) with ordinality a(name, place)
    left join unnest(items.owner, items.id, items.group_id, items.type, items.skip) m(owner, id, group_id, type, skip)
      on m.type is not null and m.skip is not true and m.owner = c.owner and m.group_id = c.id and m.id = a.name
    where c.closes
    group by c.row having count(m.id) > 0
  loop
    items.after[found.row] := found.after;
    items.need[found.row] := items.need[found.row] - found.members;
  end loop;
  return items;
end $$;

-- The rows of nested groups, with the members that are stored now. One without members has ended.
-- `items.group_no` is the group of the settled item, `p_group_nos` what `nested_group_numbers` answers.
create or replace function treadle.open_nested_groups(
  p_now float8, p_nos bigint[], items treadle.new_items, p_group_nos bigint[]) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  insert into treadle.item_group (no, open, total, ended, keep, outermost)
    select c.no, coalesce(m.members, 0), coalesce(m.members, 0), case when m.members is null then p_now end,
      coalesce(m.keep, least(c.keep, c.keep_dead)), coalesce(g.outermost, c.group_no)
    from unnest(p_nos, items.group_no, items.closes, items.skip, items.keep, items.keep_dead)
      c(no, group_no, closes, skip, keep, keep_dead)
    left join (
      select u.group_no, count(*)::int as members, min(least(u.keep, u.keep_dead)) as keep
      from unnest(p_group_nos, items.type, items.skip, items.keep, items.keep_dead)
        u(group_no, type, skip, keep, keep_dead)
      where u.type is not null and u.skip is not true group by u.group_no) m on m.group_no = c.no
    left join treadle.item_group g on g.no = c.group_no
    where c.closes and c.skip is not true;
end $$;

-- New nested groups without members have ended. Count them towards the items that wait for them, and add them to
-- `p_effects`. `p_nos`: the new items of a settle.
create or replace function treadle.end_empty_groups(p_now float8, p_effects treadle.effects, p_nos bigint[])
returns treadle.effects
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  empty bigint[] := array(select g.no from treadle.item_group g where g.no = any(p_nos) and g.open = 0);
begin
  if empty = '{}' then
    return p_effects;
  end if;
  select p_effects.ended_group_id || array_agg(i.id), p_effects.ended_group_tenant || array_agg(i.tenant),
         p_effects.ended_group_type || array_agg(i.type),
         p_effects.ended_group_value || array_fill(null::bytea, array[cardinality(empty)])
    into p_effects.ended_group_id, p_effects.ended_group_tenant, p_effects.ended_group_type,
      p_effects.ended_group_value
    from treadle.item i where i.no = any(empty);
  return treadle.count_ended_groups(p_now, p_effects, empty, array_fill(6::smallint, array[cardinality(empty)]));
end $$;
