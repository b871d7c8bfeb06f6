-- Dependencies of new items: store those that are still open. For each item with dependencies, answer how many
-- prerequisites have counted (`met`) and how many have not ended (`pending`).
--
-- A submit takes these locks last, and waits for them only briefly: settle waits for the holders of its rows,
-- so a wait for settle here could last for ever. Key-share locks conflict only with transactions that end or
-- remove the prerequisite: either those have committed, and the end counts now, or they will see the
-- dependency.
--
-- An id for which the call has neither an item nor a placeholder must exist: TR007 if it does not.
create or replace function treadle.add_dependencies(
  p_nos bigint[], items treadle.new_items,
  out no bigint[], out met int[], out pending int[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  -- What the new items name; the items with these ids; which of those are open, and which have ended.
  named_by bigint[]; named_tenant text[]; named_id text[]; named_any_end boolean[]; named_times int[];
  found_no bigint[]; found_id text[]; found_tenant text[]; found_missing boolean[];
  open_no bigint[]; ended_no bigint[]; ended_outcome smallint[]; bad record;
begin
  select array_agg(u.no), array_agg(u.tenant), array_agg(a.id), array_agg(u.counting = 1), array_agg(a.times)
    into named_by, named_tenant, named_id, named_any_end, named_times
    from unnest(p_nos, items.skip, items.tenant, items.after, items.counting)
           u(no, skip, tenant, after, counting),
         lateral (select x.id, count(*)::int as times from unnest(treadle.parts(u.after)) x(id)
                  group by x.id) a
    where u.after is not null and u.skip is not true;
  if named_by is null then
    no := '{}';
    return;
  end if;

  select array_agg(x.no), array_agg(x.id), array_agg(x.tenant), array_agg(x.type is null)
    into found_no, found_id, found_tenant, found_missing
    from (select i.no, i.id, i.tenant, i.type from treadle.item i
          where i.id = any(named_id) and i.tenant = any(named_tenant) order by i.id, i.tenant for key share) x;
  select array_agg(x.no) into open_no
    from (select o.no from treadle.open_item o where o.no = any(found_no) order by o.no for key share) x;
  select array_agg(e.no), array_agg(e.outcome) into ended_no, ended_outcome
    from treadle.ended_item e where e.no = any(found_no);

  select array_agg(u.owner) as owners, array_agg(w.id) as ids into bad
    from unnest(named_by, named_tenant, named_id) w(dependent, tenant, id)
    join unnest(p_nos, items.owner) u(no, owner) on u.no = w.dependent
    left join unnest(found_no, found_id, found_tenant, found_missing) s(no, id, tenant, missing)
      on s.id = w.id and s.tenant = w.tenant
    where (s.no is null or s.missing) and not exists (
      select 1 from unnest(items.id, items.tenant) n(id, tenant) where n.id = w.id and n.tenant = w.tenant);
  if bad.ids is not null then
    raise exception 'not found' using errcode = 'TR007',
      detail = jsonb_build_object('owners', to_jsonb(bad.owners), 'ids', to_jsonb(bad.ids))::text;
  end if;

  with named as (
    select w.dependent, w.any_end, w.times, s.no as prerequisite, e.outcome,
      s.missing or o.no is not null or new.no is not null as is_open,
      -- It existed and does not now, or it had ended and has not now: it was just requeued or removed.
      s.no is null or not (s.missing or o.no is not null or new.no is not null or e.no is not null) as is_moved
    from unnest(named_by, named_tenant, named_id, named_any_end, named_times)
      w(dependent, tenant, id, any_end, times)
    left join unnest(found_no, found_id, found_tenant, found_missing) s(no, id, tenant, missing)
      on s.id = w.id and s.tenant = w.tenant
    left join unnest(open_no) o(no) on o.no = s.no
    left join unnest(p_nos) new(no) on new.no = s.no
    left join unnest(ended_no, ended_outcome) e(no, outcome) on e.no = s.no
  ), stored as (
    insert into treadle.dependency (prerequisite, dependent, times)
      select w.prerequisite, w.dependent, w.times from named w where w.is_open and not w.is_moved
  )
  select array_agg(x.dependent), array_agg(x.met), array_agg(x.pending) into no, met, pending
  from (
    select w.dependent, coalesce(sum(w.times) filter (where w.is_open), 0)::int as pending,
      coalesce(sum(w.times) filter (where not w.is_open and (w.any_end or w.outcome = 6)), 0)::int as met,
      treadle.retry_unless(not bool_or(w.is_moved)) as unchanged
    from named w group by w.dependent
  ) x where x.unchanged;
end $$;
