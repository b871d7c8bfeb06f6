-- Keys: which of the new items are answered by an earlier one with the same key.
--
-- The rows of the keys are inserted and locked in their order, before anything else is locked. Submits that
-- name the same keys wait for each other here, and only here.
create or replace function treadle.match_keys(
  p_now float8, p_nos bigint[], items treadle.new_items,
  out "row" int[], out id text[], out own boolean[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  insert into treadle.key (tenant, type, key)
    select distinct u.tenant, u.type, u.key
    from unnest(items.tenant, items.type, items.key, items.skip) u(tenant, type, key, skip)
    where u.key is not null and u.skip is not true order by u.key, u.type, u.tenant
    on conflict do nothing;

  perform 1 from treadle.key k where (k.key, k.type, k.tenant) in (
      select u.key, u.type, u.tenant
      from unnest(items.tenant, items.type, items.key, items.skip) u(tenant, type, key, skip)
      where u.key is not null and u.skip is not true)
    order by k.key, k.type, k.tenant for update;
  p_now := treadle.clock();

  -- The item that holds a key answers for the new items whose scope it satisfies. The first new item that it
  -- does not satisfy takes the key over, and answers for the rest of this call. `own`: the holder is the new
  -- item itself, stored by a call whose answer was lost.
  with asked as (
    select u.row, u.no, u.id, u.tenant, u.type, u.key, h.id as holder, h.no as holder_no,
      coalesce(h.nonce = u.nonce and h.id = u.id, false) as own,
      h.no is not null and coalesce(
        h.nonce = u.nonce and h.id = u.id
        or case u.scope when -1 then
             -- The group of an item that is being settled ends with this transaction, not before.
             u.group_no = coalesce(h.group_no, h.no)
             or exists (select 1 from treadle.open_item o where o.no = h.no)
             or exists (select 1 from treadle.item_group g where g.no = coalesce(h.group_no, h.no) and g.open > 0)
           when -2 then true
           else h.queued >= p_now - u.scope end, false) as answered
    from unnest(p_nos, items.nonce, items.id, items.tenant, items.type, items.key, items.key_scope,
           items.group_no, items.skip)
         with ordinality u(no, nonce, id, tenant, type, key, scope, group_no, skip, row)
    join treadle.key k on k.key = u.key and k.type = u.type and k.tenant = u.tenant
    left join treadle.item h on h.no = k.no
    where u.key is not null and u.skip is not true
  ), ranked as (
    select a.*, first_value(case when a.answered then null else a.no end) over w as taker,
      first_value(a.id) over w as taker_id
    from asked a
    window w as (partition by a.key, a.type, a.tenant order by a.answered, a.no
                 rows between unbounded preceding and unbounded following)
  ), taken as (
    update treadle.key k set no = r.no, changed_by = null from ranked r
    where r.no = r.taker and k.key = r.key and k.type = r.type and k.tenant = r.tenant
    returning k.no
  )
  select array_agg(r.row::int), array_agg(case when r.taker < r.no then r.taker_id else r.holder end),
         array_agg(r.own)
    into "row", id, own
    from ranked r where r.answered or r.taker < r.no;
  if items.key_policy is not null and "row" is not null then
    perform treadle.refuse_keys(items, "row", id, own);
  end if;
end $$;

-- Raise TR011 if an earlier item answers for a new one with the policy `error`.
create or replace function treadle.refuse_keys(items treadle.new_items, p_row int[], p_id text[], p_own boolean[])
returns void language plpgsql as $$
declare
  refused record;
begin
  select jsonb_agg(u.owner order by u.rank, u.row) as owners, jsonb_agg(x.id order by u.rank, u.row) as ids,
      jsonb_agg(u.key order by u.rank, u.row) as keys
    into refused
    from unnest(p_row, p_id, p_own) x(row, id, own)
    join unnest(items.rank, items.owner, items.key, items.key_policy) with ordinality u(rank, owner, key, policy, row)
      on u.row = x.row
    where not x.own and u.policy = 3;
  if refused.ids is not null then
    raise exception 'duplicate_key' using errcode = 'TR011',
      detail = jsonb_build_object('owners', refused.owners, 'ids', refused.ids, 'keys', refused.keys)::text;
  end if;
end $$;
