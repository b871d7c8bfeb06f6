-- What a claim does first, in bounded portions: make ready what is due, and doom what has passed its deadline.
-- Rows that another transaction has locked are skipped: it is doing the same. `more`: there may be more to do.
create or replace function treadle.promote_due(
  p_now float8, p_portion int, out more boolean, out promoted bigint[])
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  nos bigint[]; seqs bigint[];
begin
  more := false;
  select array_agg(x.no), array_agg(x.seq) into promoted, seqs from (
    select d.no, case when d.seq < 0 then -d.seq else nextval('treadle.number') end as seq from (
      select o.no, o.seq from treadle.open_item o where o.status = 1 and o.due <= p_now
      order by o.due, o.queue, o.tenant limit p_portion for no key update skip locked) d) x;
  if promoted is not null then
    more := cardinality(promoted) = p_portion;
    update treadle.open_item o set status = 2, seq = d.seq, ready_since = o.due
      from unnest(promoted, seqs) d(no, seq) where o.no = d.no;
  end if;

  select array_agg(x.no) into nos from (
    select o.no from treadle.open_item o where o.deadline is not null and o.status < 4 and o.deadline <= p_now
    order by o.deadline limit p_portion for no key update skip locked) x;
  if nos is not null then
    more := more or cardinality(nos) = p_portion;
    update treadle.open_item o set shown_status = case o.status when 3 then 2 else o.status end, status = 4,
        verdict = 3
      where o.no = any(nos);
  end if;
end $$;

-- Seconds until the next scheduled item of these queues and tenants is due. If very many items of others are
-- due before, it is a lower bound: claiming too early does no harm.
create or replace function treadle.next_due(p_now float8, p_queues text[], p_tenants text[]) returns float8
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  first_due float8;
begin
  if p_queues is null and p_tenants is null then
    select o.due into first_due from treadle.open_item o where o.status = 1
      order by o.due, o.queue, o.tenant limit 1;
  else
    select coalesce(min(x.due) filter (where x.wanted), case when count(*) = 1000 then max(x.due) end)
      into first_due from (
        select o.due, (p_queues is null or o.queue = any(p_queues))
          and (p_tenants is null or o.tenant = any(p_tenants)) as wanted
        from treadle.open_item o where o.status = 1 order by o.due, o.queue, o.tenant limit 1000) x;
  end if;
  return case when first_due is not null then greatest(first_due - p_now, 0) end;
end $$;
