-- Marks: what the dead died of. Each step goes along an index of the dead, from one mark to the next.

-- The next mark. Null asks for the first: a mark may be empty text.
create or replace function treadle.next_mark(p_after text) returns text
language plpgsql stable as $$
#variable_conflict use_column
declare answer text;
begin
  if p_after is null then
    select e.mark into answer from treadle.ended_item e where e.outcome = 7 order by e.mark, e.no limit 1;
  else
    select e.mark into answer from treadle.ended_item e where e.outcome = 7 and e.mark > p_after
      order by e.mark, e.no limit 1;
  end if;
  return answer;
end $$;

-- The marks of the newest dead items, and the first marks.
create or replace function treadle.some_marks(p_most int) returns text[]
language plpgsql stable as $$
#variable_conflict use_column
declare
  newest constant int := 500;
  marks text[]; at text;
begin
  marks := array(select distinct x.mark from (
    select e.mark from treadle.ended_item e where e.outcome = 7 order by e.no desc limit newest) x);
  for k in 1 .. p_most loop
    at := treadle.next_mark(at);
    exit when at is null;
    if at <> all(marks) then
      marks := marks || at;
    end if;
  end loop;
  return marks;
end $$;

-- The item with a mark that died last.
create or replace function treadle.last_marked(p_mark text, out no bigint, out ended float8)
language plpgsql stable as $$
#variable_conflict use_column
begin
  select e.no, e.ended into no, ended from treadle.ended_item e where e.outcome = 7 and e.mark = p_mark
    order by e.mark desc, e.ended desc, e.no desc limit 1;
end $$;

-- How many items with a mark there are, up to `p_most`, and which was submitted first.
create or replace function treadle.count_marked(p_mark text, p_most int, out count int, out first bigint)
language plpgsql stable as $$
#variable_conflict use_column
begin
  select count(*), min(x.no) into count, first from (
    select e.no from treadle.ended_item e where e.outcome = 7 and e.mark = p_mark order by e.mark, e.no limit p_most) x;
end $$;

-- The marks of one tenant, with the number of items of each, the first of those that were counted, and the last to die.
-- `capped`: not all were counted. The index has them by queue and type: an item for each of these, in the order of
-- deaths, so the one that was submitted first may be beyond the cap of the caller.
create or replace function treadle.marks_of_tenant(p_tenant text, p_most int)
returns table (mark text, count int, capped boolean, first bigint, last bigint, ended float8)
language plpgsql stable as $$
#variable_conflict use_column
declare
  bound int := 10000; at_queue text; at_type text; at_mark text;
begin
  select e.queue, e.type, e.mark into at_queue, at_type, at_mark from treadle.ended_item e
    where e.outcome = 7 and e.tenant = p_tenant
    order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit 1;
  for k in 1 .. p_most loop
    exit when at_mark is null;
    mark := at_mark;
    select count(*), min(x.no) into count, first from (
      select e.no from treadle.ended_item e
      where e.outcome = 7 and e.tenant = p_tenant and e.queue = at_queue and e.type = at_type and e.mark = at_mark
      order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit greatest(bound, 20) + 1) x;
    select e.no, e.ended into last, ended from treadle.ended_item e
      where e.outcome = 7 and e.tenant = p_tenant and e.queue = at_queue and e.type = at_type and e.mark = at_mark
      order by e.tenant desc, e.queue desc, e.type desc, e.mark desc, e.ended desc, e.no desc limit 1;
    capped := count > greatest(bound, 20);
    bound := bound - count;
    return next;
    select e.queue, e.type, e.mark into at_queue, at_type, at_mark from treadle.ended_item e
      where e.outcome = 7 and e.tenant = p_tenant and (e.queue, e.type, e.mark) > (at_queue, at_type, at_mark)
      order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit 1;
  end loop;
end $$;

-- Up to `p_count` marks, those with the newest deaths first. A mark that comes late has less of the whole bound.
create or replace function treadle.dead_marks(p_tenant text, p_count int, p_cap int)
returns table (
  mark text, type text, error_type bytea, error bytea, count int, capped boolean, first_at float8, last_at float8,
  sample text, tenant text)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  most constant int := greatest(p_count, 300);
  bound int := 10000; portion int; marked record; counted record;
begin
  if p_tenant is not null then
    return query
      select m.mark, d.type, d.error_type, d.error, least(m.count, p_cap)::int, m.capped or m.count > p_cap, d.first_at,
        m.ended, d.id, d.tenant
      from (
        select m.mark, sum(m.count) as count, bool_or(m.capped) as capped, min(m.first) as first,
          max(m.ended) as ended, (array_agg(m.last order by m.ended desc, m.last desc))[1] as last
        from treadle.marks_of_tenant(p_tenant, 2 * most) m group by m.mark
        order by ended desc, last desc limit p_count) m
      cross join lateral treadle.describe_death(m.first, m.last) d
      order by m.ended desc, m.last desc;
    return;
  end if;
  for marked in
    select m.mark, l.no, l.ended from unnest(treadle.some_marks(most)) m(mark)
    cross join lateral treadle.last_marked(m.mark) l
    order by l.ended desc, l.no desc limit p_count
  loop
    portion := least(p_cap, greatest(bound, 100));
    select * into counted from treadle.count_marked(marked.mark, portion + 1);
    return query
      select marked.mark, d.type, d.error_type, d.error, least(counted.count, portion), counted.count > portion,
        d.first_at, marked.ended, d.id, d.tenant
      from treadle.describe_death(counted.first, marked.no) d;
    bound := bound - counted.count;
  end loop;
end $$;

-- What one item died of, and when another was submitted.
create or replace function treadle.describe_death(
  p_first bigint, p_last bigint, out id text, out tenant text, out type text, out error_type bytea, out error bytea,
  out first_at float8)
language plpgsql stable as $$
#variable_conflict use_column
begin
  select i.id, i.tenant, i.type, f.type, f.message, o.queued into id, tenant, type, error_type, error, first_at
    from treadle.item i join treadle.item o on o.no = p_first
    left join lateral (
      select a.type, a.message from treadle.attempt a where a.no = p_last order by a.no, a.seq desc limit 1) f on true
    where i.no = p_last;
end $$;

-- Under which releases items with a mark died, of the first `p_most` that were submitted: for each its name, how many,
-- when the first of them died, and when the release began. Null: under none, or there are too many to look at.
create or replace function treadle.mark_releases(p_mark text, p_tenant text, p_most int) returns jsonb
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  looked_at constant int := 10000;
begin
  if not exists (select 1 from treadle.release) then
    return null;
  end if;
  return (
    select case when sum(r.count) >= p_most then jsonb_agg(jsonb_build_array(r.release, r.count, r.first,
      (select b.began from treadle.release b where b.name = r.release))) filter (where r.release is not null) end from (
      select x.release, count(*) as count, min(x.ended) as first from (
        select x.release, x.ended from (
          select e.release, e.ended, e.tenant from treadle.ended_item e where e.outcome = 7 and e.mark = p_mark
          order by e.mark, e.no limit looked_at) x
        where p_tenant is null or x.tenant = p_tenant limit p_most) x
      group by x.release) r);
end $$;
