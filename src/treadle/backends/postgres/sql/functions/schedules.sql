-- Store a schedule that is new or has another spec as given. If the spec is the same, only record that its
-- code was seen. Without a next time, store nothing: only record that its code was seen.
-- p_again  store it only if there is none of the name, and if it was not removed
create or replace function treadle.put_schedule(
  p_name text, p_next_at float8, p_last_at float8, p_paused boolean, p_spec bytea, p_again boolean default false)
returns setof treadle.schedule
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
begin
  if p_next_at is null or p_again and (
      exists (select 1 from treadle.schedule s where s.name = p_name)
      or exists (select 1 from treadle.removed_schedule r where r.name = p_name)) then
    update treadle.schedule s set seen_at = treadle.clock() where s.name = p_name and s.spec = p_spec;
  else
    insert into treadle.schedule as s (name, next_at, last_at, seen_at, paused, spec)
      values (p_name, p_next_at, p_last_at, treadle.clock(), p_paused, p_spec)
      on conflict (name) do update set
        seen_at = excluded.seen_at, spec = excluded.spec,
        next_at = case when s.spec = excluded.spec then s.next_at else excluded.next_at end,
        last_at = case when s.spec = excluded.spec then s.last_at else excluded.last_at end,
        paused = case when s.spec = excluded.spec then s.paused else excluded.paused end
      where not p_again or s.spec = excluded.spec;
    delete from treadle.removed_schedule r where r.name = p_name;
  end if;
  return query select s.* from treadle.schedule s where s.name = p_name;
end $$;

-- Fire one occurrence of a schedule: store its items, move the schedule on and record the run, if `p_at` is still due.
-- `p_first`: the row of the first item. `p_error`: what the run raised.
create or replace function treadle.fire(
  p_name text, p_at float8, p_next_at float8, items treadle.new_items, p_plain boolean, p_cycles boolean,
  p_first int default 1, p_error text default null, out fired boolean, out stored treadle.stored_items)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  first_id text; first_tenant text;
begin
  perform 1 from treadle.schedule s where s.name = p_name and s.next_at = p_at and not s.paused for update;
  fired := found;
  if not fired then
    -- An earlier try of this call may have fired it, and its answer was lost.
    fired := exists (select 1 from treadle.item i
                     where i.id = items.id[1] and i.tenant = items.tenant[1] and i.nonce = items.nonce[1]);
    if not fired then
      return;
    end if;
  end if;
  if cardinality(items.id) > 0 then
    stored := treadle.store_items(items, p_plain, p_cycles);
    -- By its key, an earlier item may have answered.
    first_id := coalesce((stored).existing_id[array_position((stored).existing_row, p_first)], items.id[p_first]);
    first_tenant := items.tenant[case when cardinality(items.tenant) = 1 then 1 else p_first end];
  end if;
  update treadle.schedule s set last_at = p_at, next_at = p_next_at where s.name = p_name and s.next_at = p_at;
  if found then
    perform treadle.record_run(p_name, p_at, first_id, first_tenant, p_error);
  end if;
end $$;

-- Record the run of a schedule, and keep the newest ones only. An occurrence may come again: in a schedule that was
-- changed.
create or replace function treadle.record_run(p_name text, p_at float8, p_id text, p_tenant text, p_error text)
returns void language plpgsql as $$
begin
  insert into treadle.schedule_run as r (name, at, fired_at, id, tenant, error)
    values (p_name, p_at, treadle.clock(), p_id, p_tenant, p_error)
    on conflict (name, at) do update set
      fired_at = excluded.fired_at, id = excluded.id, tenant = excluded.tenant, error = excluded.error;
  delete from treadle.schedule_run r where r.name = p_name and r.at <= (
    select x.at from treadle.schedule_run x where x.name = p_name order by x.at desc limit 1 offset 50);
end $$;

-- The last runs of each schedule, with the status of their items.
create or replace function treadle.schedule_runs(p_count int)
returns table (name text, at float8, fired_at float8, id text, tenant text, state smallint, error text)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select r.name, r.at, r.fired_at, r.id, r.tenant,
      coalesce(case when o.verdict is not null then o.shown_status when o.status = 3 then 2 else o.status end,
        e.outcome)::smallint, r.error
    from treadle.schedule s
    cross join lateral (
      select x.* from treadle.schedule_run x where x.name = s.name order by x.at desc limit p_count) r
    left join treadle.item i on i.id = r.id and i.tenant = r.tenant and i.type is not null
    left join treadle.open_item o on o.no = i.no
    left join treadle.ended_item e on e.no = i.no
    order by r.name, r.at desc;
end $$;
