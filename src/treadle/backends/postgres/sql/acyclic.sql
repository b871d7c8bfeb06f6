-- Refuse new items that wait for each other, directly or through items stored before.
--
-- Only an item that somebody waits for already can close a circle. Circles of several submits under way at
-- once: each holds the rows it names, so the last of them to commit finds all the others, provided that
-- those who look do it one after the other. Hence the lock, which is the last thing a submit waits for.
create or replace function treadle.acyclic(p_from bigint[], p_nos bigint[], p_owners int[]) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  circular bigint; reached bigint[]; circle text[];
begin
  perform pg_advisory_xact_lock(hashtextextended('treadle.acyclic', 0));

  with recursive walk(origin, no) as (
    select o.no, e.dst from unnest(p_from) o(no) join treadle.edge e on e.src = o.no
    union
    select w.origin, e.dst from walk w join treadle.job j on j.no = w.no and j.status = 0
      join treadle.edge e on e.src = w.no
  )
  select w.origin into circular from walk w join treadle.job j on j.no = w.no and j.status = 0
    where w.no = w.origin order by w.origin desc limit 1;
  if circular is null then
    return;
  end if;

  with recursive ahead(no) as (
    select circular union
    select e.dst from ahead a join treadle.edge e on e.src = a.no
      join treadle.job j on j.no = e.dst and j.status = 0
  ) select array_agg(no) into reached from ahead;
  with recursive back(no) as (
    select circular union
    select e.src from back b join treadle.edge e on e.dst = b.no and e.src = any(reached)
  ) select array_agg(i.id order by i.no) into circle from back b join treadle.item i on i.no = b.no;
  raise exception 'cycle' using errcode = 'TR002', detail = jsonb_build_object(
    'owners', jsonb_build_array(p_owners[array_position(p_nos, circular)]), 'ids', to_jsonb(circle))::text;
end $$;
