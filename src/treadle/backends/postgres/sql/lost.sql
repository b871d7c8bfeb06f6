-- Why tokens do not own their items: 0 this very token settled it  1 taken  2 completed  3 cancelled
-- 4 not found. Tokens that do own theirs are not answered.
create or replace function treadle.lost(p_no bigint[], p_token bigint[], p_tenant text[])
returns table (place int, loss smallint)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select u.row::int,
      case when u.token in (j.last, d.token, d.last)
             or exists (select 1 from treadle.attempt a where a.no = i.no and a.token = u.token) then 0
           when i.no is null then 4
           when d.token is null and d.outcome = 6 then 2
           when d.token is null and d.outcome = 8 then 3
           else 1 end::smallint
    from unnest(p_no, p_token, p_tenant) with ordinality u(no, token, tenant, row)
    left join treadle.item i on i.no = u.no and i.tenant = u.tenant
    left join treadle.job j on j.no = i.no
    left join treadle.done d on d.no = i.no
    where j.no is null or j.status <> 5 or j.token <> u.token;
end $$;
