-- Marks: what the dead died of. Each step goes along an index of the dead, from one mark to the next. The dead of one
-- tenant have an index of their own.

-- The next mark. Null asks for the first: a mark may be empty text.
create or replace function treadle.next_mark(p_tenant text, p_after text) returns text
language plpgsql stable as $$
#variable_conflict use_column
declare answer text;
begin
  if p_tenant is null and p_after is null then
    select e.mark into answer from treadle.ended_item e where e.outcome = 7 order by e.mark, e.ended, e.no limit 1;
  elsif p_tenant is null then
    select e.mark into answer from treadle.ended_item e where e.outcome = 7 and e.mark > p_after
      order by e.mark, e.ended, e.no limit 1;
  elsif p_after is null then
    select e.mark into answer from treadle.ended_item e where e.outcome = 7 and e.tenant = p_tenant
      order by e.tenant, e.mark, e.ended, e.no limit 1;
  else
    select e.mark into answer from treadle.ended_item e
      where e.outcome = 7 and e.tenant = p_tenant and e.mark > p_after
      order by e.tenant, e.mark, e.ended, e.no limit 1;
  end if;
  return answer;
end $$;

-- The item with a mark that died last.
create or replace function treadle.last_marked(p_tenant text, p_mark text, out no bigint, out ended float8)
language plpgsql stable as $$
#variable_conflict use_column
begin
  if p_tenant is null then
    select e.no, e.ended into no, ended from treadle.ended_item e where e.outcome = 7 and e.mark = p_mark
      order by e.mark desc, e.ended desc, e.no desc limit 1;
  else
    select e.no, e.ended into no, ended from treadle.ended_item e
      where e.outcome = 7 and e.tenant = p_tenant and e.mark = p_mark
      order by e.tenant desc, e.mark desc, e.ended desc, e.no desc limit 1;
  end if;
end $$;

-- How many items with a mark there are, up to `p_most`, and which was submitted first. Of one tenant: the first of those
-- that were counted.
create or replace function treadle.count_marked(
  p_tenant text, p_mark text, p_most int, out count int, out first bigint)
language plpgsql stable as $$
#variable_conflict use_column
begin
  if p_tenant is null then
    select count(*), min(x.no) into count, first from (
      select e.no from treadle.ended_item e where e.outcome = 7 and e.mark = p_mark
      order by e.mark, e.no limit p_most) x;
  else
    select count(*), min(x.no) into count, first from (
      select e.no from treadle.ended_item e where e.outcome = 7 and e.tenant = p_tenant and e.mark = p_mark
      order by e.tenant, e.mark, e.ended, e.no limit p_most) x;
  end if;
end $$;

-- Up to `p_count` marks, those with the newest deaths first: of the newest dead items, and of the first marks. A mark
-- that comes late has less of the whole bound.
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
  newest constant int := 1000;
  bound int := 100000; marks text[]; at text; portion int; marked record;
begin
  if p_tenant is null then
    marks := array(select distinct x.mark from (
      select e.mark from treadle.ended_item e where e.outcome = 7 order by e.no desc limit newest) x);
  else
    marks := '{}';
  end if;
  for k in 1 .. most loop
    at := treadle.next_mark(p_tenant, at);
    exit when at is null;
    if at <> all(marks) then
      marks := marks || at;
    end if;
  end loop;
  for marked in
    select m.mark, l.no, l.ended from unnest(marks) m(mark)
    cross join lateral treadle.last_marked(p_tenant, m.mark) l
    order by l.ended desc, l.no desc limit p_count
  loop
    portion := least(p_cap, greatest(bound, 100));
    return query
      select marked.mark, i.type, f.type, f.message, least(n.count, portion), n.count > portion, o.queued,
        marked.ended, i.id, i.tenant
      from treadle.count_marked(p_tenant, marked.mark, portion + 1) n
      join treadle.item i on i.no = marked.no
      join treadle.item o on o.no = n.first
      left join lateral (
        select a.type, a.message from treadle.attempt a where a.no = marked.no
        order by a.no, a.seq desc limit 1) f on true;
    bound := bound - portion;
  end loop;
end $$;
