-- Items as readers see them, in the order of the numbers. Every verb that answers whole items uses this.
-- `p_full`: with their history, and the ids they wait for that have not been submitted. Where there is no failed attempt,
-- none is looked for once more: most items have none, and to collect nothing takes as long as all the rest.
create or replace function treadle.read_items(p_nos bigint[], p_full boolean) returns setof treadle.item_state
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select i.no, i.id, i.tenant, i.type, i.queue, i.lane, i.priority, i.attempts, i.queued,
      coalesce(o.due, e.due),
      case when o.no is not null then o.deadline when e.flags & 4 = 0 then i.deadline end,
      coalesce(o.claimed, e.started), e.ended,
      coalesce(case when o.verdict is not null then o.shown_status when o.status = 3 then 2 else o.status end,
        e.outcome)::smallint,
      e.reason, coalesce(o.attempt, e.attempt), coalesce(i.group_id, i.id), i.parent, i.workflow,
      i.workflow_type, i.after, i.key,
      case when o.status = 5 and o.verdict is null
        then (select w.id from treadle.worker w where w.no = o.worker) else e.worker end,
      e.result, i.input, i.options, f.type, f.message,
      case when p_full and o.counting < 2 and i.after is not null then array(
        select a.id from unnest(i.after) with ordinality a(id, place)
        where not treadle.is_submitted(a.id, i.tenant) order by a.place) end,
      coalesce(o.failures, e.failures, 0), coalesce(o.losses, e.losses, 0),
      h.attempts, h.types, h.messages, h.tracebacks, h.ats, h.workers,
      case when o.no is null then e.began when o.status = 5 and o.verdict is null then o.claimed else o.began end,
      e.mark, coalesce(o.deferrals, e.deferrals, 0),
      coalesce(o.recorded, e.flags >> 5) & 1 = 1, coalesce(o.suspended and o.status <> 5, false),
      f.release, h.releases
    from unnest(p_nos) with ordinality n(no, place)
    join treadle.item i on i.no = n.no
    left join treadle.open_item o on o.no = n.no
    left join treadle.ended_item e on e.no = n.no
    left join lateral (
      select a.type, a.message, a.release from treadle.attempt a where a.no = n.no
      order by a.no, a.seq desc limit 1) f on true
    left join lateral (
      select c.* from (select 1 where p_full and f.type is not null) failed, lateral (
        select array_agg(a.attempt) as attempts, array_agg(a.type) as types, array_agg(a.message) as messages,
          array_agg(a.traceback) as tracebacks, array_agg(a.at) as ats, array_agg(a.worker) as workers,
          array_agg(a.release) as releases
        from (select * from treadle.attempt a where a.no = n.no order by a.no, a.seq) a) c) h on true
    order by n.place;
end $$;

-- Whether an item is stored or, by its name in `after`, a group. The id of a member is not the id of a group. A group may be
-- older than its root, which was pruned.
create or replace function treadle.is_submitted(p_name text, p_tenant text) returns boolean
language plpgsql stable as $$
#variable_conflict use_column
begin
  if left(p_name, 1) <> chr(30) then
    return exists (select 1 from treadle.item i where i.id = p_name and i.tenant = p_tenant and i.type is not null);
  end if;
  return exists (
      select 1 from treadle.item i where i.id = substr(p_name, 2) and i.tenant = p_tenant and i.type is not null
        and (i.group_no is null or exists (select 1 from treadle.item_group g where g.no = i.no)))
    or exists (select 1 from treadle.item_group g where g.id = substr(p_name, 2) and g.tenant = p_tenant);
end $$;

-- The numbers of items. Without a tenant, an id that several tenants use means the item submitted first.
create or replace function treadle.find_items(p_ids text[], p_tenant text) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return (
    select array_agg(x.no) from (
      select distinct on (i.id) i.no from treadle.item i
      where i.id = any(p_ids) and i.type is not null and (p_tenant is null or i.tenant = p_tenant)
      order by i.id, i.no) x);
end $$;

-- The numbers of groups: those of items, and of groups whose roots were pruned. If an id was used again, it means the
-- new item.
create or replace function treadle.find_groups(p_ids text[], p_tenant text) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  nos bigint[] := treadle.find_items(p_ids, p_tenant);
begin
  if cardinality(nos) = cardinality(p_ids) then
    return nos;
  end if;
  return nos || array(
    select distinct on (g.id) g.no from treadle.item_group g
    where g.id = any(p_ids) and (p_tenant is null or g.tenant = p_tenant)
      and not exists (select 1 from treadle.item i where i.id = g.id and i.type is not null
                      and (p_tenant is null or i.tenant = p_tenant))
    order by g.id, g.no desc);
end $$;

-- The same as `find_items`, in the order of the ids.
create or replace function treadle.find_items_in_order(p_ids text[], p_tenant text) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  return (
    select array_agg(i.no order by u.place) from treadle.item i
    join unnest(p_ids) with ordinality u(id, place) on u.id = i.id
    where i.no = any(treadle.find_items(p_ids, p_tenant)));
end $$;
