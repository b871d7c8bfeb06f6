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
  few constant int := 16;
  now float8 := treadle.clock();
  me bigint; rest int := p_limit; more boolean := false; quick boolean := false; late boolean;
  about record; taken record; held bigint[] := '{}'; fresh bigint[] := '{}'; sentenced bigint[] := '{}';
begin
  -- One look for all that is rarely there. (With a statement for each, a claim of one took 1.4 ms, not 0.8.)
  select exists (select 1 from treadle.worker w where w.until <= now) as lapsed,
    exists (select 1 from treadle.pause) as paused,
    (select j.due from treadle.job j where j.status = 1 order by j.due, j.queue, j.tenant limit 1) as first_due,
    (select j.deadline from treadle.job j where j.deadline is not null and j.status < 4
      order by j.deadline limit 1) as first_deadline,
    (select j.type from treadle.job j where j.status = 3
      order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1) as parked,
    (select j.type from treadle.job j where j.status = 4 order by j.type, j.queue, j.tenant, j.no limit 1)
      as doomed,
    r.*
    into about from (
      select count(*) as ready, min(x.queue) as queue, max(x.queue) as last_queue, min(x.tenant) as tenant,
        max(x.tenant) as last_tenant, min(x.lane) as lane, max(x.lane) as last_lane from (
          select j.queue, j.tenant, j.lane from treadle.job j where j.status = 2
          order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit few + 1) x) r;
  if about.lapsed then
    more := treadle.bury_lapsed(now, portion);
  end if;
  late := about.lapsed or coalesce(about.first_due <= now or about.first_deadline <= now, false);
  if late or about.paused or about.ready > 0 or about.parked is not null or about.doomed is not null then
    -- Nobody buries this worker while it takes something; and if somebody just did, it has no lease.
    select w.no into me from treadle.worker w
      where w.id = p_worker and not w.gone and w.until > now for key share;
  else
    -- With nothing to take it writes nothing. (A claim in vain took 450 us with the lock, and takes 330.)
    select w.no into me from treadle.worker w where w.id = p_worker and not w.gone and w.until > now;
  end if;
  if me is null then
    return;
  end if;
  if late then
    more := treadle.refresh(now, portion) or more;
  elsif about.parked is null and not about.paused and about.ready <= least(rest, few) then
    -- All that is ready can be had. In one line at most there are no turns to be taken.
    if about.ready = 0 then
      quick := true;
    elsif about.queue = about.last_queue and about.tenant = about.last_tenant and about.lane = about.last_lane
        and (p_queues is null or about.queue = any(p_queues)) and p_avoid_lanes is null
        and (p_tenants is null or about.tenant = any(p_tenants)) then
      select l.fit, l.nos into quick, fresh from treadle.take_line(
        about.queue, about.tenant, about.lane, least(rest, few), p_types, p_rooms) l;
    end if;
  end if;

  if not quick then
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
  end if;
  if not quick or about.doomed is not null then
    sentenced := treadle.sentence(me, now, p_types, p_queues, p_tenants, 100);
  end if;

  if fresh <> '{}' then
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
  end if;
  if held <> '{}' or sentenced <> '{}' then
    return query
      select i.id, i.tenant, j.token, i.type, i.input, j.attempt, coalesce(i.group_id, i.id), i.queue, i.lane,
        i.priority, i.attempts, i.parent, i.workflow, i.workflow_type, i.after, i.options, i.queued, j.due, now,
        j.deadline, j.verdict, j.no, null::bigint[], null::float8
      from treadle.job j join treadle.item i on i.no = j.no
      where j.no = any(held || sentenced);
  end if;
  no := null; picks := held || fresh || sentenced;
  next_due := case when more then 0
                   when quick and (about.first_due is null or p_queues is null and p_tenants is null)
                     then about.first_due - now
                   else treadle.next_due(now, p_queues, p_tenants) end;
  return next;
end $$;

-- All of a line that has few: whether there is room for all of them, and their numbers.
create or replace function treadle.take_line(
  p_queue text, p_tenant text, p_lane text, p_limit int, p_types text[], p_rooms int[],
  out fit boolean, out nos bigint[])
language plpgsql as $$
#variable_conflict use_column
declare
  types text[]; place int;
begin
  select coalesce(array_agg(x.no), '{}'), array_agg(x.type) into nos, types from (
    select j.no, j.type from treadle.job j
    where j.status = 2 and j.queue = p_queue and j.tenant = p_tenant and j.lane = p_lane
    order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit p_limit for update skip locked) x;
  fit := true;
  for k in 1 .. case when p_types is null then 0 else cardinality(nos) end loop
    place := array_position(p_types, types[k]);
    if coalesce(p_rooms[place], 0) = 0 then
      fit := false; nos := '{}';
      return;
    end if;
    p_rooms[place] := p_rooms[place] - 1;
  end loop;
end $$;
