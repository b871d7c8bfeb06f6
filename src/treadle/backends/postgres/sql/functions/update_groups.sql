-- Groups: count members that ended and members that are new, apply contributions in the order of the
-- settlements, and end the groups that have no open member left.
--
-- Answers which contributions were applied, and the groups that ended.
--
-- p_token, p_version  of each settlement: its token, and the version that it was folded from
create or replace function treadle.update_groups(
  p_now float8, p_groups bigint[], ended treadle.ended_rows, p_result bytea[], p_value bytea[],
  p_token bigint[], p_version bigint[], children treadle.new_items,
  out contributed_row int[],
  out no bigint[], out kind smallint[],         -- 6: it counts as success  7: it does not
  out id text[], out tenant text[], out type text[], out value bytea[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  n constant int := cardinality(children.id); ended_nos bigint[]; new_groups bigint[];
  tolerated constant bigint[] := coalesce(ended.tolerated, '{}');
begin
  -- Items that had no group row until now: their groups start with themselves.
  with new as (
    insert into treadle.item_group (no, open, keep)
      select x.no, 1, x.keep
      from unnest(ended.no, ended.group_no, ended.flags, ended.keep) x(no, group_no, flags, keep)
      where x.group_no is null and x.flags & 8 <> 0
      returning no
  )
  select array_agg(x.no) into new_groups from new x;
  p_groups := p_groups || new_groups;

  -- Count members and apply contributions, in one statement: each group's row is written once.
  with members as (
    select coalesce(x.group_no, x.no) as group_no, -1 as open, 0 as joined, (x.kind = 7)::int as dead,
      (x.kind = 7 and x.no <> all(tolerated))::int as failed, (x.kind = 8)::int as cancelled,
      null::float8 as keep
      from unnest(ended.no, ended.group_no, ended.kind, ended.flags) x(no, group_no, kind, flags)
      where x.group_no is not null or x.flags & 8 <> 0
    union all
    select c.group_no, 1, 1, 0, 0, 0, least(c.keep, c.keep_dead)
      from unnest(treadle.spread(children.type, n), children.skip, children.group_no,
             treadle.spread(children.keep, n), treadle.spread(children.keep_dead, n))
           c(type, skip, group_no, keep, keep_dead)
      where c.type is not null and c.skip is not true
  ), sums as (
    select m.group_no, sum(m.open)::int as open, sum(m.joined)::int as joined, sum(m.dead)::int as dead, sum(m.failed)::int as failed,
      sum(m.cancelled)::int as cancelled, min(m.keep) as keep
    from members m group by m.group_no
  ), contributions as (
    select coalesce(x.group_no, x.no) as group_no, x.row, x.flags & 2 <> 0 as final,
      x.flags & 4 <> 0 as has_value
    from unnest(ended.row, ended.no, ended.group_no, ended.flags) x(row, no, group_no, flags)
    where x.flags & 1 <> 0 and (x.group_no is not null or x.flags & 8 <> 0)
  ), valid as (
    -- Those up to the first final one.
    select c.*, row_number() over (partition by c.group_no order by c.row)::int as rank
    from (select c.*, bool_or(c.final) over (partition by c.group_no order by c.row
                 rows between unbounded preceding and 1 preceding) as is_late from contributions c) c
    where c.is_late is not true
  ), last as (
    select distinct on (v.group_no) v.group_no, v.row, v.rank, v.final, v.has_value
    from valid v order by v.group_no, v.rank desc
  ), changed as (
    update treadle.item_group g set
        open = g.open + s.open, total = g.total + s.joined, dead = g.dead + s.dead, failed = g.failed + s.failed,
        cancelled = g.cancelled + s.cancelled,
        keep = least(g.keep, s.keep),
        version = case when g.final or l.row is null then g.version
                       else treadle.next_version(p_token[l.row], p_version[l.row]) end,
        contributed = g.contributed or l.row is not null,
        final = g.final or coalesce(l.final, false),
        value = case when g.final or l.row is null then g.value
                     when l.has_value then p_value[l.row] else p_result[l.row] end,
        ended = case when g.open + s.open = 0 then p_now end,
        prune_at = case when g.open + s.open = 0 and g.outermost is null then p_now + least(g.keep, s.keep) end
      from sums s left join last l on l.group_no = s.group_no
      where g.no = any(p_groups) and g.no = s.group_no
      returning g.no, g.open, g.final, l.final as is_locked_now
  )
  select array_agg(distinct c.no) filter (where c.open = 0),
         array_agg(v.row) filter (where v.row is not null)
    into ended_nos, contributed_row
    from changed c left join valid v on v.group_no = c.no and (not c.final or c.is_locked_now);

  -- The groups that ended. An item that is about to wait for one of them has its row locked: after this, its
  -- dependency can be seen. What is in nested groups may have a shorter retention.
  if ended_nos is not null then
    perform 1 from treadle.item_group g where g.no = any(ended_nos) order by g.no for update;
    select array_agg(i.no), array_agg(case when g.failed > 0 or g.cancelled > 0 then 7 else 6 end::smallint),
           array_agg(i.id), array_agg(i.tenant), array_agg(i.type), array_agg(case when g.contributed then g.value end)
      into no, kind, id, tenant, type, value
      from (select no, id, tenant, type from treadle.item where no = any(ended_nos)
            union all
            select no, id, tenant, type from treadle.item_group where no = any(ended_nos) and id is not null) i
      join (select no, contributed, value, failed, cancelled from treadle.item_group where no = any(ended_nos)) g
        on g.no = i.no;
    if exists (select 1 from treadle.item_group x where x.outermost = any(ended_nos)) then
      update treadle.item_group g set prune_at = least(g.prune_at, p_now + (
          select min(x.keep) from treadle.item_group x where x.outermost = g.no))
        where g.no = any(ended_nos);
    end if;
  end if;
end $$;
