-- Columns of rows, as columns.py encodes them. Statements call these functions, and the server inlines those in SQL,
-- so those cannot pin their search path. Instead, the names in a `return` are resolved when it is created.

-- A column of names.
create or replace function treadle.names(p_text text) returns text[] language sql immutable
return case when p_text = '' then array[''] else string_to_array(p_text, chr(10), chr(1)) end;

-- The ids within one element of `after`.
create or replace function treadle.parts(p_text text) returns text[] language sql immutable
return string_to_array(p_text, chr(31));

-- A column of one element, repeated for every row.
create or replace function treadle.spread(p_column anyarray, p_rows int) returns anyarray
language sql immutable as $$
  select case when pg_catalog.cardinality(p_column) operator(pg_catalog.=) 1
    then pg_catalog.array_fill(p_column[1], array[p_rows]) else p_column end
$$;

-- Every column of new items, one element per row.
create or replace function treadle.spread_items(items treadle.new_items) returns treadle.new_items
language plpgsql as $$
declare
  n constant int := cardinality(items.id);
begin
  items.owner := treadle.spread(items.owner, n);
  items.tenant := treadle.spread(items.tenant, n);
  items.type := treadle.spread(items.type, n);
  items.queue := treadle.spread(items.queue, n);
  items.lane := treadle.spread(items.lane, n);
  items.priority := treadle.spread(items.priority, n);
  items.attempts := treadle.spread(items.attempts, n);
  items.run_at := treadle.spread(items.run_at, n);
  items.delay := treadle.spread(items.delay, n);
  items.deadline := treadle.spread(items.deadline, n);
  items.expires_in := treadle.spread(items.expires_in, n);
  items.parent := treadle.spread(items.parent, n);
  items.workflow := treadle.spread(items.workflow, n);
  items.workflow_type := treadle.spread(items.workflow_type, n);
  items.after := treadle.spread(items.after, n);
  items.need := treadle.spread(items.need, n);
  items.counting := treadle.spread(items.counting, n);
  items.key := treadle.spread(items.key, n);
  items.key_scope := treadle.spread(items.key_scope, n);
  items.keep := treadle.spread(items.keep, n);
  items.keep_dead := treadle.spread(items.keep_dead, n);
  items.input := treadle.spread(items.input, n);
  items.options := treadle.spread(items.options, n);
  items.nonce := treadle.spread(items.nonce, n);
  items.lease_to := treadle.spread(items.lease_to, n);
  items.group_id := treadle.spread(items.group_id, n);
  items.contributes := treadle.spread(items.contributes, n);
  items.closes := treadle.spread(items.closes, n);
  items.key_policy := treadle.spread(items.key_policy, n);
  items.debounce_max := treadle.spread(items.debounce_max, n);
  return items;
end $$;

-- New item numbers in the order of submission, which need not be the order of the rows.
create or replace function treadle.new_numbers(p_rank int[], p_rows int) returns bigint[]
language plpgsql as $$
begin
  if p_rows = 1 then
    return array[nextval('treadle.number')];
  elsif p_rank is null then
    return array(select nextval('treadle.number') from generate_series(1, p_rows));
  end if;
  return array(
    select x.no from (
      select nextval('treadle.number') as no, r.row from (
        select u.row from unnest(p_rank) with ordinality u(rank, row) order by u.rank) r) x
    order by x.row);
end $$;
