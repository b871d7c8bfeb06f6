-- Prerequisites: let new items wait for the items they name, and say how their gates stand.
--
-- Locks come last in a submit, and never wait long: settle waits for whoever holds one of its rows, so
-- whoever waited here for settle could wait for ever. Key-share locks disturb nobody but those who end or
-- remove the prerequisite: either they are through, and it counts now, or they will see the edge.
create or replace function treadle.await(
  i_nos bigint[], i_skip boolean[], i_tenant text[], i_after text[], i_counting smallint[],
  out d_no bigint[], out d_met int[], out d_open int[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  w_dst bigint[]; w_tenant text[]; w_id text[]; w_any boolean[]; w_times int[];
  s_no bigint[]; s_id text[]; s_tenant text[]; s_missing boolean[];
  live bigint[]; e_no bigint[]; e_outcome smallint[];
begin
  select array_agg(u.no), array_agg(u.tenant), array_agg(a.id), array_agg(u.counting = 1), array_agg(a.times)
    into w_dst, w_tenant, w_id, w_any, w_times
    from unnest(i_nos, i_skip, i_tenant, i_after, i_counting) u(no, skip, tenant, after, counting),
         lateral (select x.id, count(*)::int as times from unnest(treadle.parts(u.after)) x(id)
                  group by x.id) a
    where u.after is not null and u.skip is not true;
  if w_dst is null then
    d_no := '{}';
    return;
  end if;

  select array_agg(no), array_agg(id), array_agg(tenant), array_agg(type is null)
    into s_no, s_id, s_tenant, s_missing
    from (select i.no, i.id, i.tenant, i.type from treadle.item i
          where i.id = any(w_id) and i.tenant = any(w_tenant) order by i.id, i.tenant for key share) x;
  select array_agg(no) into live
    from (select j.no from treadle.job j where j.no = any(s_no) order by j.no for key share) x;
  select array_agg(d.no), array_agg(d.outcome) into e_no, e_outcome
    from treadle.done d where d.no = any(s_no);

  with wanted as (
    select w.dst, w.any_end, w.times, s.no as src, e.outcome,
      s.missing or l.no is not null or o.no is not null as open,
      s.no is null or not (s.missing or l.no is not null or o.no is not null or e.no is not null) as moved
    from unnest(w_dst, w_tenant, w_id, w_any, w_times) w(dst, tenant, id, any_end, times)
    left join unnest(s_no, s_id, s_tenant, s_missing) s(no, id, tenant, missing)
      on s.id = w.id and s.tenant = w.tenant
    left join unnest(live) l(no) on l.no = s.no
    left join unnest(i_nos) o(no) on o.no = s.no
    left join unnest(e_no, e_outcome) e(no, outcome) on e.no = s.no
  ), stored as (
    insert into treadle.edge (src, dst, times)
      select w.src, w.dst, w.times from wanted w where w.open and not w.moved
  )
  select array_agg(x.dst), array_agg(x.met), array_agg(x.still) into d_no, d_met, d_open
  from (
    select w.dst, coalesce(sum(w.times) filter (where w.open), 0)::int as still,
      coalesce(sum(w.times) filter (where not w.open and (w.any_end or w.outcome = 6)), 0)::int as met,
      -- It was there and is no more, or was ended and is not: somebody requeued or removed it just now.
      treadle.insist(not bool_or(w.moved)) as quiet
    from wanted w group by w.dst
  ) x where x.quiet;
end $$;

-- Everything again, in a new transaction, if things moved in between.
create or replace function treadle.insist(p_quiet boolean) returns boolean language plpgsql as $$
begin
  if not p_quiet then
    raise exception 'a prerequisite changed meanwhile' using errcode = '40001';
  end if;
  return true;
end $$;
