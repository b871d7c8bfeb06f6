-- Claim: hand out what is ready, in turns, and what is doomed. One call, no waiting: whatever somebody else
-- has locked is skipped.
create or replace function treadle.claim(
  p_worker text, p_limit int, p_types text[], p_rooms int[], p_queues text[], p_tenants text[],
  p_avoid_tenants text[], p_avoid_lanes text[], p_grace float8,
  t_queue text, t_queues text[], t_tenants text[], l_queues text[], l_tenants text[], l_lanes text[])
returns table (
  id text, tenant text, token bigint, type text, input bytea, attempt int, group_id text, queue text, lane text,
  priority int, attempts int, parent text, workflow text, workflow_type text, after text[], options bytea,
  queued float8, due float8, claimed float8, deadline float8, verdict smallint, no bigint,
  picks bigint[], next_due float8)
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  portion constant int := 1000;
  now float8 := treadle.clock();
  me bigint; rest int := p_limit; more boolean := false;
  taken record; held bigint[] := '{}'; fresh bigint[] := '{}'; sentenced bigint[];
begin
  more := treadle.bury_lapsed(now, portion);
  -- Nobody buries this worker while it claims; and if somebody just did, it has no lease.
  select w.no into me from treadle.worker w
    where w.id = p_worker and not w.gone and w.until > now for key share;
  if me is null then
    return;
  end if;
  more := treadle.refresh(now, portion) or more;

  if rest > 0 then
    select * into taken from treadle.take(me, now, rest, p_types, p_rooms, p_queues, p_tenants,
      p_avoid_tenants, p_avoid_lanes, t_queue, t_queues, t_tenants, l_queues, l_tenants, l_lanes);
    held := taken.held; fresh := taken.fresh; more := more or taken.more;
    rest := rest - cardinality(held) - cardinality(fresh);
  end if;
  if p_grace is not null then
    if rest = 0 then
      perform treadle.sweep(now);
    end if;
    perform treadle.forget(now, p_grace, portion);
  end if;
  sentenced := treadle.sentence(me, now, p_types, p_queues, p_tenants, 100);

  return query
    with leased as (
      update treadle.job j set status = 5, attempt = j.attempt + 1, token = nextval('treadle.token'),
          worker = me, claimed = now
        where j.no = any(fresh)
        returning j.no, j.token, j.attempt, j.due, j.deadline, j.verdict
    )
    select i.id, i.tenant, j.token, i.type, i.input, j.attempt, coalesce(i.group_id, i.id), i.queue, i.lane,
      i.priority, i.attempts, i.parent, i.workflow, i.workflow_type, i.after, i.options, i.queued, j.due, now,
      j.deadline, j.verdict, j.no, null::bigint[], null::float8
    from leased j join treadle.item i on i.no = j.no;
  if held <> '{}' or sentenced <> '{}' then
    return query
      select i.id, i.tenant, j.token, i.type, i.input, j.attempt, coalesce(i.group_id, i.id), i.queue, i.lane,
        i.priority, i.attempts, i.parent, i.workflow, i.workflow_type, i.after, i.options, i.queued, j.due, now,
        j.deadline, j.verdict, j.no, null::bigint[], null::float8
      from treadle.job j join treadle.item i on i.no = j.no
      where j.no = any(held || sentenced);
  end if;
  no := null; picks := held || fresh || sentenced;
  next_due := case when more then 0 else treadle.next_due(now, p_queues, p_tenants) end;
  return next;
end $$;
