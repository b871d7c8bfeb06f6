-- Folds: which contributions were computed from a value that is no longer the group's (they are `moved`), and
-- what the value is now.
--
-- Takes all the locks of a settle, in its order, and decides; it changes nothing. After a fold that does not
-- apply, no later one of its group can be right.
create or replace function treadle.check_folds(
  settlements treadle.settlements,
  out "row" int[], out version bigint[], out value bytea[], out final boolean[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  owned_no bigint[]; group_nos bigint[]; c record;
  at int; now_version bigint; now_value bytea; now_final boolean; broken boolean;
begin
  select array_agg(x.no), array_agg(distinct x.group_no) into owned_no, group_nos
    from (select o.no, o.token, o.group_no from treadle.open_item o
          where o.no = any(settlements.no) and o.status > 4 order by o.no for update) x
    join unnest(settlements.token) u(token) on u.token = x.token;
  perform 1 from treadle.open_item o
    where o.no = any(array(select d.dependent from treadle.dependency d where d.prerequisite = any(owned_no)))
      and o.status = 0
    order by o.no for no key update;
  perform 1 from treadle.item_group g where g.no = any(group_nos) order by g.no for no key update;

  -- In the order of the settlements, group by group.
  for c in
    select u.row, u.token, u.version, u.flags, u.group_index, o.no is not null as owned, g.version as group_version,
      g.final, g.value, case when u.flags & 4 <> 0 then u.value else u.result end as contributed
    from unnest(settlements.no, settlements.token, settlements.tenant, settlements.flags, settlements.version,
           settlements.group_index, settlements.result, settlements.value) with ordinality
      u(no, token, tenant, flags, version, group_index, result, value, row)
    left join (select o.no, o.token, o.tenant, o.group_no, o.contributes from treadle.open_item o
               where o.no = any(owned_no)) o
      on o.no = u.no and o.token = u.token and o.tenant = u.tenant
    left join (select g.no, g.version, g.final, g.value from treadle.item_group g where g.no = any(group_nos)) g
      on g.no = o.group_no
    where u.flags & 1 <> 0 and o.contributes is not false
    order by u.group_index, u.row
  loop
    if c.group_index is distinct from at then
      at := c.group_index; now_version := null; broken := false;
    end if;
    if not c.owned then
      broken := broken or c.version is not null;
      continue;
    end if;
    if now_version is null then
      now_version := coalesce(c.group_version, 0); now_value := c.value; now_final := coalesce(c.final, false);
    end if;
    if c.version is not null and (broken or now_final or c.version <> now_version) then
      "row" := "row" || c.row::int; version := version || now_version;
      value := array_append(value, now_value); final := final || now_final;
      broken := true;
    elsif not now_final then
      now_version := treadle.next_version(c.token, c.version); now_value := c.contributed; now_final := c.flags & 2 <> 0;
    end if;
  end loop;
end $$;
