-- Folds: which contributions were computed from a value that is no longer the group's.
--
-- Takes all the locks of a settle, in its order, and decides; nothing is changed here. s_group numbers the
-- groups of this call. After a fold that did not happen, no later one of its group can be right.
create or replace function treadle.fold(
  s_no bigint[], s_token bigint[], s_tenant text[], s_flags smallint[], s_version int[], s_group int[],
  s_result bytea[], s_value bytea[],
  out m_row int[], out m_version int[], out m_value bytea[], out m_final boolean[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  own bigint[]; groups bigint[]; c record;
  at int; version int; value bytea; final boolean; broken boolean;
begin
  select array_agg(x.no), array_agg(distinct x.grp) into own, groups
    from (select j.no, j.token, j.grp from treadle.job j
          where j.no = any(s_no) and j.status = 5 order by j.no for update) x
    join unnest(s_token) u(token) on u.token = x.token;
  perform 1 from treadle.job j
    where j.no = any(array(select e.dst from treadle.edge e where e.src = any(own))) and j.status = 0
    order by j.no for no key update;
  perform 1 from treadle.grp g where g.no = any(groups) order by g.no for no key update;

  -- In the order of the settlements, group by group.
  for c in
    select u.row, u.version, u.flags, u.grp, j.no is not null as owned, g.version as have, g.final, g.value,
      case when u.flags & 4 <> 0 then u.value else u.result end as offer
    from unnest(s_no, s_token, s_tenant, s_flags, s_version, s_group, s_result, s_value) with ordinality
      u(no, token, tenant, flags, version, grp, result, value, row)
    left join (select j.no, j.token, j.tenant, j.grp from treadle.job j where j.no = any(own)) j
      on j.no = u.no and j.token = u.token and j.tenant = u.tenant
    left join (select g.no, g.version, g.final, g.value from treadle.grp g where g.no = any(groups)) g
      on g.no = j.grp
    where u.flags & 1 <> 0
    order by u.grp, u.row
  loop
    if c.grp is distinct from at then
      at := c.grp; version := null; broken := false;
    end if;
    if not c.owned then
      broken := broken or c.version is not null;
      continue;
    end if;
    if version is null then
      version := coalesce(c.have, 0); value := c.value; final := coalesce(c.final, false);
    end if;
    if c.version is not null and (broken or final or c.version <> version) then
      m_row := m_row || c.row::int; m_version := m_version || version;
      m_value := array_append(m_value, value); m_final := m_final || final;
      broken := true;
    elsif not final then
      version := version + 1; value := c.offer; final := c.flags & 2 <> 0;
    end if;
  end loop;
end $$;
