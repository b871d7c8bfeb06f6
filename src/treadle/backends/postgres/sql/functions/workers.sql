-- Workers: their heartbeats, their removal, and their leases.

-- Keep a worker alive, or register it (`fresh`). Of the leases it asks about, answer which are lost. Answer some of
-- its other leases, and how many permits it has.
create or replace function treadle.beat(
  p_worker text, p_lease float8, p_types text[], p_keep_types boolean, p_no bigint[], p_token bigint[],
  p_tenant text[], p_info bytea default null, p_release text default null,
  out fresh boolean, out lost_row int[], out lost_code smallint[], out drain boolean,
  out unknown bigint[], out permits int)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  now float8 := treadle.clock(); worker_no bigint; leases int; had text[];
begin
  fresh := false;
  loop
    update treadle.worker w set until = now + p_lease, lease = p_lease, info = coalesce(p_info, w.info)
      where w.id = p_worker and not w.gone and (p_keep_types or w.types is not distinct from p_types)
      returning w.drain, w.no, (select count(*) from treadle.open_item o where o.worker = w.no and o.status = 5),
        (select sum(p.held) from treadle.permit p where p.worker = w.id)
      into drain, worker_no, leases, permits;
    exit when found;
    -- It has other types now, or is not known.
    select coalesce(w.types, array['']) into had from treadle.worker w
      where w.id = p_worker and not w.gone for no key update;
    if found then
      if not had <@ p_types then
        perform treadle.lose_types(now, had);
      end if;
      update treadle.worker w set types = p_types where w.id = p_worker and not w.gone;
      continue;
    end if;
    insert into treadle.worker (id, until, lease, types, info, release)
      values (p_worker, now + p_lease, p_lease, p_types, p_info, p_release)
      on conflict (id) where not gone do nothing;
    fresh := found;
    exit when fresh;
  end loop;
  if fresh and p_release is not null then
    perform treadle.note_release(now, p_release);
  end if;
  if p_no is not null then
    select array_agg(l.place), array_agg(l.loss) into lost_row, lost_code
      from treadle.lease_losses(p_no, p_token, p_tenant) l;
  end if;
  if leases > coalesce(cardinality(p_no), 0) - coalesce(cardinality(lost_row), 0) then
    select array_agg(token) into unknown from (
      select o.token from treadle.open_item o
      where o.worker = worker_no and o.status = 5 and o.token <> all(coalesce(p_token, '{}'))
      order by o.token limit 100) x;
  end if;
end $$;

-- Note when the first worker of a release began. The newest hundred are kept.
create or replace function treadle.note_release(p_now float8, p_release text) returns void
language plpgsql as $$
begin
  insert into treadle.release (name, began) values (p_release, p_now) on conflict (name) do nothing;
  if found then
    delete from treadle.release r where r.name in (
      select x.name from treadle.release x order by x.began desc, x.name desc offset 100);
  end if;
end $$;

-- A worker no longer has these types, or some of them. Since when matters only for those that no other has.
create or replace function treadle.lose_types(p_now float8, p_types text[]) returns void
language plpgsql as $$
begin
  insert into treadle.lost_type (type, lost)
    select distinct t.type, p_now from unnest(p_types) t(type) order by t.type
    on conflict (type) do update set lost = excluded.lost;
end $$;

-- Keep a worker alive on behalf of its process, and register none. Answer whether it is known.
create or replace function treadle.renew(p_worker text, p_lease float8, p_info bytea) returns boolean
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '2s'
as $$
begin
  update treadle.worker w set until = treadle.clock() + p_lease, info = coalesce(p_info, w.info)
    where w.id = p_worker and not w.gone;
  return found;
end $$;

-- Why tokens do not own their items: 0 this token settled it  1 taken  2 completed  3 cancelled  4 not found.
-- Tokens that own their items are left out.
create or replace function treadle.lease_losses(p_no bigint[], p_token bigint[], p_tenant text[])
returns table (place int, loss smallint)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select u.row::int,
      case when u.token in (o.last_token, e.token, e.last_token)
             or exists (select 1 from treadle.attempt a where a.no = i.no and a.token = u.token) then 0
           when i.no is null then 4
           when e.token is null and e.outcome = 6 then 2
           when e.token is null and e.outcome = 8 then 3
           else 1 end::smallint
    from unnest(p_no, p_token, p_tenant) with ordinality u(no, token, tenant, row)
    left join treadle.item i on i.no = u.no and i.tenant = u.tenant
    left join treadle.open_item o on o.no = i.no
    left join treadle.ended_item e on e.no = i.no
    where o.no is null or o.status <> 5 or o.token <> u.token;
end $$;

-- Count attempts as begun, for leases that still own their items. Answer the leases that do not.
create or replace function treadle.begin_attempts(p_no bigint[], p_token bigint[], p_tenant text[])
returns table (place int, loss smallint)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  update treadle.open_item o set begun = true, attempt = o.attempt + 1
    from unnest(p_no, p_token, p_tenant) u(no, token, tenant)
    where o.no = u.no and o.token = u.token and o.tenant = u.tenant and o.status > 4 and not o.begun;
  return query select l.place, l.loss from treadle.lease_losses(p_no, p_token, p_tenant) l;
end $$;

-- Seconds that an item waits after its second and each further loss in a row. Items that were lost together
-- wait for different times.
create or replace function treadle.loss_delay(p_losses int, p_no bigint) returns float8
language sql immutable as $$
  select least(2 ^ least(p_losses - 2, 10), 30) * (1 - (p_no * 7919 + p_losses * 104729) % 1000 / 2000.0::float8)
$$;

-- The leases of a worker whose tokens it does not know.
create or replace function treadle.unknown_leases(p_worker text, p_known bigint[])
returns table (
  id text, tenant text, token bigint, type text, input bytea, attempt int, group_id text, queue text, lane text,
  priority int, attempts int, parent text, workflow text, workflow_type text, after text[], options bytea,
  queued float8, due float8, claimed float8, deadline float8, verdict smallint, no bigint, failures int, losses int,
  begun boolean, ready float8, has_steps boolean, resumes boolean, deferrals int)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select i.id, i.tenant, o.token, i.type, i.input, o.attempt + (not o.begun)::int, coalesce(i.group_id, i.id),
      i.queue, i.lane, i.priority, i.attempts, i.parent, i.workflow, i.workflow_type, i.after, i.options, i.queued, o.due,
      coalesce(o.claimed, o.ready_since), o.deadline, o.verdict, o.no, o.failures, o.losses, o.begun, o.ready_since,
      o.recorded & 1 = 1, o.suspended, o.deferrals
    from treadle.worker w
    join treadle.open_item o on o.worker = w.no and o.status = 5
    join treadle.item i on i.no = o.no
    where w.id = p_worker and not w.gone and o.token <> all(p_known)
    order by o.token;
end $$;

-- Remove a worker at once, and free all the items that it was running.
create or replace function treadle.remove_worker(p_worker text) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  worker_no bigint; now float8; freed int; total int := 0;
begin
  -- This waits for claims of the worker under way; after that there are no new ones.
  select w.no into worker_no from treadle.worker w where w.id = p_worker and not w.gone for update;
  if worker_no is null then
    return 0;
  end if;
  now := treadle.clock();
  -- This waits for settlements of the worker under way.
  perform 1 from treadle.open_item o where o.worker = worker_no and o.status = 5 order by o.no for update;
  loop
    freed := treadle.free_leases(now, worker_no, 10000);
    total := total + freed;
    exit when freed = 0 or not exists (select 1 from treadle.worker w where w.no = worker_no);
  end loop;
  return total;
end $$;

-- Remove workers whose lease has lapsed. A claim does this first. Workers that another transaction has locked
-- are skipped: it is doing the same. True: there may be more to do.
create or replace function treadle.remove_lapsed_workers(p_now float8, p_portion int) returns boolean
language plpgsql
set jit = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  worker_no bigint; removed int := 0; more boolean := false;
begin
  -- The clock went back: see `is_far` in treadle.store.rules. A worker that lives sends a heartbeat within its lease.
  update treadle.worker w set until = p_now + w.lease where w.no in (
    select x.no from treadle.worker x where x.until > p_now + 2 * x.lease for update skip locked);
  for worker_no in
    select w.no from treadle.worker w where w.until <= p_now order by w.until limit 10 for update skip locked
  loop
    removed := removed + 1;
    more := treadle.free_leases(p_now, worker_no, p_portion) = p_portion or more;
  end loop;
  return more or removed = 10;
end $$;

-- Free the items that a removed worker was running, up to a portion. Delete the worker once all are free.
create or replace function treadle.free_leases(p_now float8, p_worker bigint, p_limit int) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  nos bigint[]; freed int;
begin
  select array_agg(no) into nos from (
    select o.no from treadle.open_item o where o.worker = p_worker and o.status = 5
    order by o.no limit p_limit for update skip locked) x;
  freed := coalesce(cardinality(nos), 0);
  if freed > 0 then
    insert into treadle.attempt (no, attempt, at, worker, type, message, traceback, release)
      select o.no, o.attempt, p_now, w.id, 'LeaseLost',
        convert_to('worker ' || w.id || ' died or lost its lease', 'UTF8'), '', w.release
      from treadle.open_item o join treadle.worker w on w.no = p_worker
      where o.no = any(nos) and o.verdict is null and o.begun;
    perform treadle.trim_history(nos);
    -- The first loss in a row delays nothing. A negative place is kept until the item is due: see
    -- `promote_due`.
    update treadle.open_item o set
        status = case when o.verdict is not null then 4 when o.begun and o.losses > 0 then 1 else 2 end,
        seq = case when o.verdict is null and o.begun and o.losses > 0 then -o.seq else o.seq end,
        due = case when o.verdict is null and o.begun and o.losses > 0
                   then p_now + treadle.loss_delay(o.losses + 1, o.no) else o.due end,
        losses = o.losses + case when o.verdict is null and o.begun then 1 else 0 end,
        began = case when o.verdict is null and o.begun then o.claimed else o.began end,
        ready_since = case when o.verdict is null and not o.begun then o.ready_since else p_now end,
        suspended = false, token = null, worker = null
      where o.no = any(nos);
  end if;
  perform treadle.lose_types(p_now, coalesce(w.types, array[''])) from treadle.worker w
    where w.no = p_worker and not w.gone;
  delete from treadle.permit p using treadle.worker w where w.no = p_worker and p.worker = w.id;
  delete from treadle.lease_permit p using treadle.worker w where w.no = p_worker and p.worker = w.id;
  delete from treadle.worker w where w.no = p_worker
    and not exists (select 1 from treadle.open_item o where o.worker = p_worker and o.status = 5);
  if not found then
    update treadle.worker w set gone = true, until = '-infinity' where w.no = p_worker and not w.gone;
  end if;
  return freed;
end $$;
