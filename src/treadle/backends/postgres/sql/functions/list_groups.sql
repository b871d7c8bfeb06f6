-- Lists of groups and of workflows: see `Backend.groups`. A row without an id says where the walk ended because of its
-- reach.

-- p_first, p_before  the first number, and the one after the last
--
-- `between`, and not `=`: for the latter, plans walk along all groups in the order of their numbers.
create or replace function treadle.list_groups(
  p_outcomes smallint[], p_first bigint, p_before bigint, p_limit int, p_reach int, p_tenant text, p_type text,
  p_since float8, p_until float8)
returns table (no bigint, id text, tenant text, type text, outcome smallint, open int, total int, failed int,
  queued float8, ended float8, death bigint)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  nos bigint[];
begin
  if p_reach is not null then
    nos := array(
      select w.no from unnest(p_outcomes) u(outcome) cross join lateral (
        select g.no from treadle.item_group g
        where g.outcome between u.outcome and u.outcome and g.no < p_before and g.no >= p_first
        order by g.outcome desc, g.no desc limit p_reach + 1) w
      order by w.no desc offset p_reach - 1 limit 2);
    if cardinality(nos) = 2 then
      p_first := nos[1];
      no := p_first;
      queued := (select i.queued from treadle.item i where i.no = p_first);
      return next;
    end if;
  end if;
  return query
    select g.no, coalesce(i.id, g.id), coalesce(i.tenant, g.tenant), coalesce(i.type, g.type), g.outcome, g.open, g.total,
      g.failed, i.queued, g.ended,
      case when g.failed > 0 then (
        select f.no from treadle.ended_item f where f.group_no = g.no and f.flags & 8 = 0
        order by f.group_no, f.ended, f.no limit 1) end
    from (
      select w.no from unnest(p_outcomes) u(outcome) cross join lateral (
        select g.no from treadle.item_group g left join treadle.item i on i.no = g.no
        where g.outcome between u.outcome and u.outcome and g.no < p_before and g.no >= p_first
          and (p_tenant is null or coalesce(i.tenant, g.tenant) = p_tenant)
          and (p_type is null or coalesce(i.type, g.type) = p_type)
          and (p_since is null or i.no is null or i.queued >= p_since)
          and (p_until is null or i.no is null or i.queued < p_until)
        order by g.outcome desc, g.no desc limit p_limit) w
      order by w.no desc limit p_limit) n
    join treadle.item_group g on g.no = n.no
    left join treadle.item i on i.no = n.no
    order by n.no desc;
end $$;

-- Of the roots of workflows, those that are the newest of theirs.
--
-- p_most  items of a workflow that are counted
create or replace function treadle.list_workflows(
  p_outcomes smallint[], p_first bigint, p_before bigint, p_limit int, p_reach int, p_tenant text, p_type text,
  p_since float8, p_until float8, p_most int)
returns table (no bigint, id text, tenant text, type text, outcome smallint, open int, total int, failed int,
  queued float8, ended float8, death bigint, capped boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  root record; counted record; shown int := 0; looked int := 0; reached float8;
begin
  for root in
    select i.no, i.workflow, i.tenant, i.type, i.queued, exists (
      select 1 from treadle.item n where n.workflow = i.workflow and n.workflow is not null and n.tenant = i.tenant
        and n.group_no is null and n.no > i.no) as is_older
    from treadle.item i
    where i.workflow is not null and i.group_no is null and i.no < p_before and i.no >= p_first order by i.no desc
  loop
    exit when shown = p_limit;
    if looked = p_reach then
      id := null; queued := reached;
      return next;
      exit;
    end if;
    looked := looked + 1; no := root.no; reached := root.queued;
    continue when root.is_older or root.tenant <> p_tenant or root.type <> p_type or root.queued < p_since
      or root.queued >= p_until;
    select count(*)::int as total, (count(*) - count(e.outcome))::int as open,
        (count(*) filter (where e.outcome = 7 and e.flags & 8 = 0))::int as failed,
        (count(*) filter (where e.outcome = 8))::int as cancelled, min(m.no) as first, max(e.ended) as ended,
        (array_agg(m.no order by e.ended, m.no) filter (where e.outcome = 7 and e.flags & 8 = 0))[1] as death
      into counted
      from (select i.no from treadle.item i
            where i.workflow = root.workflow and i.workflow is not null and i.tenant = root.tenant
            order by i.workflow desc, i.tenant desc, i.no desc limit p_most) m
      left join treadle.ended_item e on e.no = m.no;
    outcome := case when counted.open > 0 then 0 when counted.failed > 0 then 2 when counted.cancelled > 0 then 3 else 1 end;
    continue when outcome <> all(p_outcomes);
    id := root.workflow; tenant := root.tenant; type := root.type; open := counted.open; total := counted.total;
    failed := counted.failed; death := counted.death;
    ended := case when open = 0 then counted.ended end;
    queued := (select i.queued from treadle.item i where i.no = counted.first);
    capped := total = p_most and exists (
      select 1 from treadle.item i where i.workflow = root.workflow and i.workflow is not null and i.tenant = root.tenant
        and i.no < counted.first);
    shown := shown + 1;
    return next;
  end loop;
end $$;
