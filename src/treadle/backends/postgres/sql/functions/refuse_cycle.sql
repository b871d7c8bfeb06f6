-- Raise TR002 if new items wait for each other, directly, through items stored before or through groups: a group
-- waits for its members. `p_from` are the items that something may wait for: only those can close a cycle.
--
-- Several concurrent submits may close a cycle together. Each holds locks on the rows it names, so the last
-- one to commit sees the dependencies of all the others, provided that the searches run one after the other.
-- Hence the advisory lock, which is the last lock that a submit waits for.
create or replace function treadle.refuse_cycle(p_from bigint[], p_nos bigint[], p_owners int[]) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  circular bigint; reached bigint[]; cycle text[];
begin
  perform pg_advisory_xact_lock(hashtextextended('treadle.cycles', 0));

  with recursive dependents(origin, no) as (
    select f.no, f.no from unnest(p_from) f(no)
    union
    -- From a blocked item to those that wait for it or for its group. The first one may come round again.
    select w.origin, case when d.dependent = w.origin then -d.dependent else d.dependent end
      from dependents w join treadle.open_item o on o.no = w.no and o.status = 0
      cross join lateral treadle.dependents_of(o.no, o.group_no) d
  )
  select w.origin into circular from dependents w where w.no = -w.origin order by w.origin desc limit 1;
  if circular is null then
    return;
  end if;

  -- The cycle: the items that depend on it and that it depends on.
  with recursive ahead(no) as (
    select circular union
    select d.dependent from ahead a join treadle.open_item o on o.no = a.no and o.status = 0
      cross join lateral treadle.dependents_of(o.no, o.group_no) d
  ) select array_agg(no) into reached from ahead;
  with recursive steps(prerequisite, dependent) as materialized (
    select o.no, d.dependent from treadle.open_item o
      cross join lateral treadle.dependents_of(o.no, o.group_no) d
      where o.no = any(reached) and o.status = 0
  ), back(no) as (
    select circular union
    select s.prerequisite from back b join steps s on s.dependent = b.no
  ) select array_agg(i.id order by i.no) into cycle from back b join treadle.item i on i.no = b.no;
  raise exception 'cycle' using errcode = 'TR002', detail = jsonb_build_object(
    'owners', jsonb_build_array(p_owners[array_position(p_nos, circular)]), 'ids', to_jsonb(cycle))::text;
end $$;

-- The items that wait for an open item, or for its group.
create or replace function treadle.dependents_of(p_no bigint, p_group bigint) returns table (dependent bigint)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
    select d.dependent from treadle.dependency d where d.prerequisite = p_no and not d.of_group
    union all
    select d.dependent from treadle.dependency d where d.prerequisite = coalesce(p_group, p_no) and d.of_group;
end $$;

-- Whether something waits for the group of one of these new items.
create or replace function treadle.any_group_is_awaited(p_items bigint[], p_nos bigint[], p_groups bigint[])
returns boolean
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  return p_items is not null and p_groups is not null and exists (
    select 1 from treadle.dependency d
    where d.prerequisite = any(array(
        select u.group_no from unnest(p_nos, p_groups) u(no, group_no) where u.no = any(p_items)))
      and d.of_group);
end $$;
