-- Claim a key for an owner. True: it is the owner's, because the owner was first or the earlier claim expired.
-- An open transaction that has claimed the key is waited for by trying again, without a connection meanwhile.
create or replace function treadle.claim_key(p_key text, p_tenant text, p_owner text, p_ttl float8) returns boolean
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5ms'
as $$
#variable_conflict use_column
declare
  now float8 := treadle.clock(); holder text;
begin
  insert into treadle.claimed_key as k (key, tenant, owner, until) values (p_key, p_tenant, p_owner, now + p_ttl)
    on conflict (key, tenant) do update set owner = excluded.owner, until = excluded.until
      where k.until <= now
    returning k.owner into holder;
  if holder is null then
    select k.owner into holder from treadle.claimed_key k where k.key = p_key and k.tenant = p_tenant;
  end if;
  return holder = p_owner;
end $$;
