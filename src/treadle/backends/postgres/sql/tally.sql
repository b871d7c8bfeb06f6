-- Groups: count members in and out, apply contributions in the order of settling, end those that are done.
create or replace function treadle.tally(
  p_now float8, p_groups bigint[], x_row int[], x_no bigint[], x_grp bigint[], x_kind smallint[],
  x_flags smallint[], x_keep float8[], s_result bytea[], s_value bytea[],
  i_type text[], i_skip boolean[], i_grp bigint[], i_keep float8[], i_keep_dead float8[],
  out v_row int[], out v_version int[],
  out c_id text[], out c_tenant text[], out c_type text[], out c_value bytea[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  closed bigint[]; roots bigint[];
begin
  -- Items that were lone until now: their groups begin with themselves.
  with begun as (
    insert into treadle.grp (no, open, keep)
      select x.no, 1, x.keep from unnest(x_no, x_grp, x_flags, x_keep) x(no, grp, flags, keep)
      where x.grp is null and x.flags & 8 <> 0
      returning no
  )
  select array_agg(b.no) into roots from begun b;
  p_groups := p_groups || roots;

  with members as (
    select coalesce(x.grp, x.no) as grp, -1 as open, (x.kind = 7)::int as dead, (x.kind = 8)::int as cancelled,
      null::float8 as keep
      from unnest(x_no, x_grp, x_kind, x_flags) x(no, grp, kind, flags) where x.grp is not null or x.flags & 8 <> 0
    union all
    select i.grp, 1, 0, 0, least(i.keep, i.keep_dead)
      from unnest(i_type, i_skip, i_grp, i_keep, i_keep_dead) i(type, skip, grp, keep, keep_dead)
      where i.type is not null and i.skip is not true
  ), sums as (
    select m.grp, sum(m.open)::int as open, sum(m.dead)::int as dead, sum(m.cancelled)::int as cancelled,
      min(m.keep) as keep
    from members m group by m.grp
  ), offers as (
    select coalesce(x.grp, x.no) as grp, x.row, x.flags & 2 <> 0 as final, x.flags & 4 <> 0 as given
    from unnest(x_row, x_no, x_grp, x_flags) x(row, no, grp, flags)
    where x.flags & 1 <> 0 and (x.grp is not null or x.flags & 8 <> 0)
  ), valid as (
    select o.*, row_number() over (partition by o.grp order by o.row)::int as rank
    from (select o.*, bool_or(o.final) over (partition by o.grp order by o.row
                 rows between unbounded preceding and 1 preceding) as late from offers o) o
    where o.late is not true
  ), last as (
    select distinct on (v.grp) v.grp, v.row, v.rank, v.final, v.given from valid v order by v.grp, v.rank desc
  ), changed as (
    update treadle.grp g set
        open = g.open + s.open, dead = g.dead + s.dead, cancelled = g.cancelled + s.cancelled,
        keep = least(g.keep, s.keep),
        version = case when g.final then g.version else g.version + coalesce(l.rank, 0) end,
        contributed = g.contributed or l.row is not null,
        final = g.final or coalesce(l.final, false),
        value = case when g.final or l.row is null then g.value
                     when l.given then s_value[l.row] else s_result[l.row] end,
        ended = case when g.open + s.open = 0 then p_now end,
        prune = case when g.open + s.open = 0 then p_now + least(g.keep, s.keep) end
      from sums s left join last l on l.grp = s.grp
      where g.no = any(p_groups) and g.no = s.grp
      returning g.no, g.open, g.version, coalesce(l.rank, 0) as rank, g.final, l.final as locked
  )
  select array_agg(distinct c.no) filter (where c.open = 0),
         array_agg(v.row order by v.row) filter (where v.row is not null),
         array_agg(c.version - c.rank + v.rank order by v.row) filter (where v.row is not null)
    into closed, v_row, v_version
    from changed c left join valid v on v.grp = c.no and (not c.final or c.locked);

  if closed is not null then
    select array_agg(i.id), array_agg(i.tenant), array_agg(i.type),
           array_agg(case when g.contributed then g.value end)
      into c_id, c_tenant, c_type, c_value
      from (select no, id, tenant, type from treadle.item where no = any(closed)) i
      join (select no, contributed, value from treadle.grp where no = any(closed)) g on g.no = i.no;
  end if;
end $$;
