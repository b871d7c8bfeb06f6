-- What a claim does first, in bounded portions: remove_worker whose lease has lapsed, make ready what is due, doom
-- what has passed its deadline. What somebody else has locked, somebody else is doing. True: there may be
-- more to do.
create or replace function treadle.bury_lapsed(p_now float8, p_portion int) returns boolean
language plpgsql
set jit = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  who bigint; found int := 0; left_over boolean := false;
begin
  for who in
    select w.no from treadle.worker w where w.until <= p_now order by w.until limit 10 for update skip locked
  loop
    found := found + 1;
    left_over := treadle.free(p_now, who, p_portion) = p_portion or left_over;
  end loop;
  return left_over or found = 10;
end $$;

create or replace function treadle.refresh(p_now float8, p_portion int) returns boolean
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  nos bigint[]; seqs bigint[]; left_over boolean := false;
begin
  select array_agg(x.no), array_agg(x.seq) into nos, seqs from (
    select d.no, case when d.seq < 0 then -d.seq else nextval('treadle.number') end as seq from (
      select j.no, j.seq from treadle.job j where j.status = 1 and j.due <= p_now
      order by j.due, j.queue, j.tenant limit p_portion for update skip locked) d) x;
  if nos is not null then
    left_over := cardinality(nos) = p_portion;
    update treadle.job j set status = 2, seq = d.seq, since = p_now
      from unnest(nos, seqs) d(no, seq) where j.no = d.no;
  end if;

  select array_agg(x.no) into nos from (
    select j.no from treadle.job j where j.deadline is not null and j.status < 4 and j.deadline <= p_now
    order by j.deadline limit p_portion for update skip locked) x;
  if nos is not null then
    left_over := left_over or cardinality(nos) = p_portion;
    update treadle.job j set was = case j.status when 3 then 2 else j.status end, status = 4, verdict = 3
      where j.no = any(nos);
  end if;
  return left_over;
end $$;

-- Seconds until the next scheduled item of these queues and tenants is due. Behind very many of others it
-- is a lower bound: too early a look costs nothing.
create or replace function treadle.next_due(p_now float8, p_queues text[], p_tenants text[]) returns float8
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  found float8;
begin
  if p_queues is null and p_tenants is null then
    select j.due into found from treadle.job j where j.status = 1 order by j.due, j.queue, j.tenant limit 1;
  else
    select coalesce(min(x.due) filter (where x.mine), case when count(*) = 1000 then max(x.due) end)
      into found from (
        select j.due, (p_queues is null or j.queue = any(p_queues))
          and (p_tenants is null or j.tenant = any(p_tenants)) as mine
        from treadle.job j where j.status = 1 order by j.due, j.queue, j.tenant limit 1000) x;
  end if;
  return case when found is not null then greatest(found - p_now, 0) end;
end $$;
