-- How columns come: see columns.py.

-- A column of names.
create or replace function treadle.names(p_text text) returns text[] language sql immutable as $$
  select case when p_text = '' then array[''] else string_to_array(p_text, chr(10), chr(1)) end
$$;

-- The names within one, in the `after` of an item.
create or replace function treadle.parts(p_text text) returns text[] language sql immutable as $$
  select string_to_array(p_text, chr(31))
$$;

-- A column that says the same in every row says it once.
create or replace function treadle.spread(p_column anyarray, p_rows int) returns anyarray
language sql immutable as $$
  select case when cardinality(p_column) = 1 then array_fill(p_column[1], array[p_rows]) else p_column end
$$;
