-- Beat: keep a worker alive, or make it known; and of the leases it asks about, which are lost.
create or replace function treadle.beat(
  p_worker text, p_lease float8, p_types text[], p_keep_types boolean, p_no bigint[], p_token bigint[],
  p_tenant text[],
  out fresh boolean, out l_row int[], out l_loss smallint[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  now float8 := treadle.clock();
begin
  fresh := false;
  loop
    update treadle.worker w set until = now + p_lease,
        types = case when p_keep_types then w.types else p_types end
      where w.id = p_worker and not w.gone;
    exit when found;
    insert into treadle.worker (id, until, types) values (p_worker, now + p_lease, p_types)
      on conflict (id) where not gone do nothing;
    fresh := found;
    exit when fresh;
  end loop;
  if p_no is not null then
    select array_agg(l.place), array_agg(l.loss) into l_row, l_loss from treadle.lost(p_no, p_token, p_tenant) l;
  end if;
end $$;
