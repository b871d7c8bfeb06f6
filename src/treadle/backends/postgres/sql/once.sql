-- A key claimed by its first owner, until its time is over.
create or replace function treadle.once(p_key text, p_tenant text, p_owner text, p_ttl float8) returns boolean
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  now float8 := treadle.clock(); holder text;
begin
  insert into treadle.once as o (key, tenant, owner, until) values (p_key, p_tenant, p_owner, now + p_ttl)
    on conflict (key, tenant) do update set owner = excluded.owner, until = excluded.until
      where o.until <= now
    returning o.owner into holder;
  if holder is null then
    select o.owner into holder from treadle.once o where o.key = p_key and o.tenant = p_tenant;
  end if;
  return holder = p_owner;
end $$;
