-- Of the items that ended, those whose death is tolerated: an item names them in `after`, and counts any end or needs
-- fewer than it names. So is the death of a compensation and of what it queued: the death that it compensates has
-- failed the group. Their rows are marked. Answers their numbers.
--
-- p_new, p_owners  look only at these items, which the settlements in the rows `p_owners` have just stored. What a
--                  later settlement stores does not tolerate a death.
create or replace function treadle.tolerate_deaths(ended treadle.ended_rows, p_new bigint[], p_owners int[])
returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set join_collapse_limit = 1 set from_collapse_limit = 1
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  dead bigint[] := array(select x.no from unnest(ended.no, ended.kind) x(no, kind) where x.kind = 7);
  naming bigint[] := treadle.naming(array(select i.id from treadle.item i where i.no = any(dead)));
  tolerated bigint[]; silent bigint[];
begin
  if p_new is null then
    select array_agg(i.no) into silent from treadle.item i
      where i.no = any(dead) and i.contributes is false and i.type <> 'treadle' || '.group';  -- not `treadle.`: see schema.py
    update treadle.ended_item e set flags = e.flags | 8 where e.no = any(silent);
  end if;
  if naming is null or p_new is not null and not naming && p_new then
    return silent;
  end if;
  p_owners := treadle.spread(p_owners, cardinality(p_new));
  select array_agg(distinct m.no) into tolerated from unnest(naming) n(no)
    join treadle.item w on w.no = n.no and (w.counting = 1 or w.need < cardinality(w.after))
    cross join lateral unnest(w.after) a(id)
    join treadle.item m on m.id = a.id and m.tenant = w.tenant
    where m.no = any(dead) and (
      p_new is null or exists (
        select 1 from unnest(p_new, p_owners) u(no, owner), unnest(ended.no, ended.row) e(no, row)
        where u.no = w.no and e.no = m.no and u.owner <= e.row));
  if tolerated is not null then
    update treadle.ended_item e set flags = e.flags | 8 where e.no = any(tolerated);
  end if;
  return tolerated || silent;
end $$;
