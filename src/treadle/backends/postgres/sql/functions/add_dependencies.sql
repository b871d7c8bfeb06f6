-- Dependencies of new items: store those that are still open. For each item with dependencies, answer how many
-- prerequisites have counted (`met`) and how many have not ended (`pending`). `outward`: the items that wait for
-- something that was stored before.
--
-- A submit takes these locks last, and waits for them only briefly: settle waits for the holders of its rows,
-- so a wait for settle here could last for ever. Key-share locks conflict only with transactions that end,
-- requeue or remove the prerequisite: either those have committed, and the end counts now, or they will see the
-- dependency.
--
-- An id for which the call has neither an item nor a placeholder must exist: TR007 if it does not.
create or replace function treadle.add_dependencies(
  p_nos bigint[], items treadle.new_items,
  out no bigint[], out met int[], out pending int[], out outward bigint[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  -- What the new items name, as items or as groups; the items with these ids; which of those are open, and which
  -- have ended; the groups with these ids that have a row.
  named_by bigint[]; named_tenant text[]; named_id text[]; named_group boolean[]; named_any_end boolean[];
  named_times int[];
  found_no bigint[]; found_id text[]; found_tenant text[]; found_missing boolean[]; found_member boolean[];
  open_no bigint[]; ended_no bigint[]; ended_outcome smallint[]; ended_flags smallint[];
  group_no bigint[]; group_ended boolean[]; group_unsuccessful boolean[]; bad record;
  -- The groups with these ids whose roots were pruned.
  old_no bigint[]; old_id text[]; old_tenant text[]; old_ended boolean[]; old_unsuccessful boolean[];
begin
  select array_agg(u.no), array_agg(u.tenant), array_agg(ltrim(a.name, chr(30))),
         array_agg(left(a.name, 1) = chr(30)), array_agg(u.counting = 1), array_agg(a.times)
    into named_by, named_tenant, named_id, named_group, named_any_end, named_times
    from unnest(p_nos, items.skip, items.tenant, items.after, items.counting)
           u(no, skip, tenant, after, counting),
         lateral (select x.name, count(*)::int as times from unnest(treadle.parts(u.after)) x(name)
                  group by x.name) a
    where u.after is not null and u.skip is not true;
  if named_by is null then
    no := '{}';
    return;
  end if;

  select array_agg(x.no), array_agg(x.id), array_agg(x.tenant), array_agg(x.type is null),
         array_agg(x.group_no is not null)
    into found_no, found_id, found_tenant, found_missing, found_member
    from (select i.no, i.id, i.tenant, i.type, i.group_no from treadle.item i
          where i.id = any(named_id) and i.tenant = any(named_tenant) order by i.id, i.tenant for key share) x;
  select array_agg(x.no) into open_no
    from (select o.no from treadle.open_item o where o.no = any(found_no) order by o.no for key share) x;
  if true = any(named_group) then
    select array_agg(x.no), array_agg(x.ended is not null), array_agg(x.failed > 0 or x.cancelled > 0)
      into group_no, group_ended, group_unsuccessful
      from (select g.no, g.ended, g.failed, g.cancelled from treadle.item_group g where g.no = any(found_no)
            order by g.no for key share) x;
    select array_agg(x.no), array_agg(x.id), array_agg(x.tenant), array_agg(x.ended is not null),
           array_agg(x.failed > 0 or x.cancelled > 0)
      into old_no, old_id, old_tenant, old_ended, old_unsuccessful
      from (select distinct on (x.id, x.tenant) x.* from (
              select g.no, g.id, g.tenant, g.ended, g.failed, g.cancelled from treadle.item_group g
              where g.id = any(named_id) and g.tenant = any(named_tenant) order by g.no for key share) x
            order by x.id, x.tenant, x.no desc) x;
  end if;
  select array_agg(e.no), array_agg(e.outcome), array_agg(e.flags) into ended_no, ended_outcome, ended_flags
    from treadle.ended_item e where e.no = any(found_no);
  if 7 = any(ended_outcome) or 8 = any(ended_outcome) then
    -- A requeue of these has either committed, or will see the dependency.
    perform treadle.retry_unless(count(*) = (select count(*) from unnest(ended_outcome) o(outcome) where o.outcome > 6))
      from (select 1 from treadle.ended_item e where e.no = any(found_no) and e.outcome > 6
            order by e.no for key share) x;
  end if;

  select array_agg(u.owner) as owners, array_agg(case when w.of_group then chr(30) || w.id else w.id end) as ids
    into bad
    from unnest(named_by, named_tenant, named_id, named_group) w(dependent, tenant, id, of_group)
    join unnest(p_nos, items.owner) u(no, owner) on u.no = w.dependent
    left join unnest(found_no, found_id, found_tenant, found_missing, found_member) s(no, id, tenant, missing, member)
      on s.id = w.id and s.tenant = w.tenant
    where (s.no is null or s.missing or w.of_group and s.member and s.no <> all(coalesce(group_no, '{}')))
      and not exists (
      select 1 from unnest(items.id, items.tenant) n(id, tenant) where n.id = w.id and n.tenant = w.tenant)
      and not (w.of_group and (s.no is null or s.missing) and exists (
      select 1 from unnest(old_id, old_tenant) n(id, tenant) where n.id = w.id and n.tenant = w.tenant));
  if bad.ids is not null then
    raise exception 'not found' using errcode = 'TR007',
      detail = jsonb_build_object('owners', to_jsonb(bad.owners), 'ids', to_jsonb(bad.ids))::text;
  end if;

  with found as (
    select w.dependent, w.any_end, w.times, w.of_group, coalesce(p.no, s.no) as prerequisite,
      coalesce(s.missing, true) and p.no is null as missing, new.no is not null as is_new,
      case when not w.of_group then o.no is not null or new.no is not null
           -- A group: its row, or the new items that join it, or an item that is alone. The id of a member is not
           -- the id of a group: it never ends.
           when p.no is not null then not p.ended
           when g.no is not null then not g.ended
           else joined.no is not null or o.no is not null or new.no is not null or s.member end as is_open,
      case when not w.of_group then e.outcome
           when p.no is not null then case when p.unsuccessful then 7 else 6 end
           when g.no is not null then case when g.unsuccessful then 7 else 6 end
           when e.no is not null then case when e.outcome = 7 and e.flags & 8 <> 0 then 6 else e.outcome end end as outcome
    from unnest(named_by, named_tenant, named_id, named_group, named_any_end, named_times)
      w(dependent, tenant, id, of_group, any_end, times)
    left join unnest(found_no, found_id, found_tenant, found_missing, found_member) s(no, id, tenant, missing, member)
      on s.id = w.id and s.tenant = w.tenant
    left join unnest(old_no, old_id, old_tenant, old_ended, old_unsuccessful) p(no, id, tenant, ended, unsuccessful)
      on w.of_group and (s.no is null or s.missing) and p.id = w.id and p.tenant = w.tenant
    left join unnest(open_no) o(no) on o.no = s.no
    left join unnest(p_nos) new(no) on new.no = s.no
    left join unnest(ended_no, ended_outcome, ended_flags) e(no, outcome, flags) on e.no = s.no
    left join unnest(group_no, group_ended, group_unsuccessful) g(no, ended, unsuccessful) on g.no = s.no
    left join (select distinct j.no from unnest(items.group_no) j(no)) joined on joined.no = s.no
  ), named as (
    select f.*, f.missing or f.is_open as waits,
      -- It existed and does not now, or it had ended and has not now: it was just requeued or removed.
      f.prerequisite is null or not (f.missing or f.is_open or f.outcome is not null) as is_moved
    from found f
  ), stored as (
    insert into treadle.dependency (prerequisite, dependent, times, of_group)
      select w.prerequisite, w.dependent, w.times, w.of_group from named w where w.waits and not w.is_moved
  )
  select array_agg(x.dependent), array_agg(x.met), array_agg(x.pending),
         array_agg(x.dependent) filter (where x.is_outward)
    into no, met, pending, outward
  from (
    select w.dependent, coalesce(sum(w.times) filter (where w.waits), 0)::int as pending,
      coalesce(sum(w.times) filter (where not w.waits and (w.any_end or w.outcome = 6)), 0)::int as met,
      bool_or(w.waits and not w.missing and not w.is_new) as is_outward,
      treadle.retry_unless(not bool_or(w.is_moved)) as unchanged
    from named w group by w.dependent
  ) x where x.unchanged;
end $$;
