-- Doomed items of the demanded queues and tenants: to a worker that has their type, or to any if no live
-- worker has it.
create or replace function treadle.sentence(
  p_me bigint, p_now float8, p_types text[], p_queues text[], p_tenants text[], p_limit int) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  picked bigint[] := '{}'; nos bigint[]; y text := ''; q text;
begin
  loop
    select j.type into y from treadle.job j where j.status = 4 and j.type > y
      order by j.type, j.queue, j.tenant, j.no limit 1;
    exit when y is null;
    continue when not (p_types is null or y = any(p_types) or not treadle.known(y, p_now));
    q := '';
    loop
      select j.queue into q from treadle.job j where j.status = 4 and j.type = y and j.queue > q
        order by j.type, j.queue, j.tenant, j.no limit 1;
      exit when q is null;
      continue when p_queues is not null and q <> all(p_queues);
      select array_agg(x.no) into nos from (
        select j.no from treadle.job j where j.status = 4 and j.type = y and j.queue = q
          and (p_tenants is null or j.tenant = any(p_tenants))
        order by j.type, j.queue, j.tenant, j.no limit p_limit - cardinality(picked) for update skip locked) x;
      picked := picked || coalesce(nos, '{}');
      exit when cardinality(picked) >= p_limit;
    end loop;
    exit when cardinality(picked) >= p_limit;
  end loop;
  if picked <> '{}' then
    update treadle.job j set status = 5, token = nextval('treadle.token'), worker = p_me
      where j.no = any(picked);
  end if;
  return picked;
end $$;

-- Whether some live worker has a type.
create or replace function treadle.known(p_type text, p_now float8) returns boolean language sql stable as $$
  select exists (select 1 from treadle.worker w
                 where not w.gone and w.until > p_now and (w.types is null or p_type = any(w.types)))
$$;

-- Doom what waited too long while no live worker had its type.
create or replace function treadle.forget(p_now float8, p_grace float8, p_portion int) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  y text := ''; nos bigint[];
begin
  if exists (select 1 from treadle.worker w where not w.gone and w.until > p_now and w.types is null) then
    return;
  end if;
  -- Such items are parked by the first claim that meets them.
  loop
    select j.type into y from treadle.job j where j.status = 3 and j.type > y
      order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
    exit when y is null;
    continue when treadle.known(y, p_now);
    continue when exists (select 1 from treadle.skill s where s.type in ('', y) and s.lost >= p_now - p_grace);
    select array_agg(x.no) into nos from (
      select j.no from treadle.job j where j.status = 3 and j.type = y and j.since < p_now - p_grace
      order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit p_portion
      for update skip locked) x;
    if nos is not null then
      update treadle.job j set status = 4, was = 2, verdict = 8 where j.no = any(nos);
    end if;
  end loop;
end $$;

-- Set aside the items at the head of the lines whose types nobody has, when no turn comes to them.
create or replace function treadle.sweep(p_now float8) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  q text := ''; t text; l text; lines int := 0; nos bigint[];
begin
  loop
    q := treadle.next_queue(null, q);
    exit when q is null or lines >= 200;
    t := '';
    loop
      t := treadle.next_tenant(null, q, t);
      exit when t is null or lines >= 200;
      l := null;
      loop
        l := treadle.next_lane(null, q, t, l);
        exit when l is null or lines >= 200;
        lines := lines + 1;
        select array_agg(h.no) into nos from (
          select j.no, j.type from treadle.job j
          where j.status = 2 and j.queue = q and j.tenant = t and j.lane = l
          order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 50 for update skip locked) h
        where not treadle.known(h.type, p_now);
        if nos is not null then
          update treadle.job j set status = 3 where j.no = any(nos);
        end if;
      end loop;
    end loop;
  end loop;
end $$;
