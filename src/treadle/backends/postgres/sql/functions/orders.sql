-- Store an order. False if the one with its subject is the same.
create or replace function treadle.put_order(
  p_subject text, p_queue text, p_tenant text, p_until float8, p_body bytea) returns boolean
language plpgsql
set jit = off set lock_timeout = '2s'
as $$
declare
  now float8 := treadle.clock();
begin
  perform treadle.lock_orders();
  if treadle.has_order(p_subject, now, p_body) then
    return false;
  end if;
  insert into treadle.orders as o (subject, queue, tenant, until, at, body)
    values (p_subject, p_queue, p_tenant, p_until, now, p_body)
    on conflict (subject) do update set until = excluded.until, at = excluded.at, body = excluded.body;
  perform treadle.change_orders(now);
  return true;
end $$;

-- False if no such order is in force.
create or replace function treadle.withdraw_order(p_subject text) returns boolean
language plpgsql
set jit = off set lock_timeout = '2s'
as $$
declare
  now float8 := treadle.clock(); known boolean;
begin
  perform treadle.lock_orders();
  known := treadle.has_order(p_subject, now, null);
  delete from treadle.orders o where o.subject = p_subject;
  if known then
    perform treadle.change_orders(now);
  end if;
  return known;
end $$;

create or replace function treadle.has_order(p_subject text, p_now float8, p_body bytea) returns boolean
language plpgsql as $$
begin
  return exists (select 1 from treadle.orders o
                 where o.subject = p_subject and (o.until is null or o.until > p_now) and (p_body is null or o.body = p_body));
end $$;

-- One change at a time.
create or replace function treadle.lock_orders() returns void
language plpgsql as $$
begin
  insert into treadle.orders (subject, at, body) values ('', 0, '') on conflict (subject) do nothing;
  perform 1 from treadle.orders o where o.subject = '' for no key update;
end $$;

-- The next version: see next_orders in treadle.store.rules.orders.
create or replace function treadle.change_orders(p_now float8) returns void
language plpgsql as $$
begin
  update treadle.orders o set at = greatest(o.at + 1, trunc(p_now * 1e6)) where o.subject = '';
end $$;

-- Whether a pause holds items of this queue and tenant.
create or replace function treadle.is_paused(p_queue text, p_tenant text, p_now float8) returns boolean
language plpgsql stable as $$
begin
  return exists (select 1 from treadle.orders o
                 where o.queue in ('', p_queue) and o.tenant in ('', p_tenant) and (o.until is null or o.until > p_now));
end $$;
