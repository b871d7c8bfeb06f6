-- Raise TR002 if new items wait for each other, directly or through items stored before. `p_from` are the
-- items that something already waits for: only those can close a cycle.
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
    select f.no, d.dependent from unnest(p_from) f(no) join treadle.dependency d on d.prerequisite = f.no
    union
    select w.origin, d.dependent from dependents w join treadle.open_item o on o.no = w.no and o.status = 0
      join treadle.dependency d on d.prerequisite = w.no
  )
  select w.origin into circular from dependents w join treadle.open_item o on o.no = w.no and o.status = 0
    where w.no = w.origin order by w.origin desc limit 1;
  if circular is null then
    return;
  end if;

  -- The cycle: the items that depend on it and that it depends on.
  with recursive ahead(no) as (
    select circular union
    select d.dependent from ahead a join treadle.dependency d on d.prerequisite = a.no
      join treadle.open_item o on o.no = d.dependent and o.status = 0
  ) select array_agg(no) into reached from ahead;
  with recursive back(no) as (
    select circular union
    select d.prerequisite from back b
      join treadle.dependency d on d.dependent = b.no and d.prerequisite = any(reached)
  ) select array_agg(i.id order by i.no) into cycle from back b join treadle.item i on i.no = b.no;
  raise exception 'cycle' using errcode = 'TR002', detail = jsonb_build_object(
    'owners', jsonb_build_array(p_owners[array_position(p_nos, circular)]), 'ids', to_jsonb(cycle))::text;
end $$;
