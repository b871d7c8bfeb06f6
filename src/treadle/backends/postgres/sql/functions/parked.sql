-- Park the items at the head of the lines whose types no live worker has. A claim that is full does this,
-- because it does not reach them itself.
create or replace function treadle.park_unknown_types(p_now float8) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  most_lines constant int := 200;
  at_queue text := ''; at_tenant text; at_lane text; lines int := 0; nos bigint[];
begin
  loop
    at_queue := treadle.next_queue(null, at_queue);
    exit when at_queue is null or lines >= most_lines;
    at_tenant := '';
    loop
      at_tenant := treadle.next_tenant(null, at_queue, at_tenant);
      exit when at_tenant is null or lines >= most_lines;
      at_lane := null;
      loop
        at_lane := treadle.next_lane(null, at_queue, at_tenant, at_lane);
        exit when at_lane is null or lines >= most_lines;
        lines := lines + 1;
        -- Only what is parked is locked: other claims skip locked items.
        select array_agg(h.no) into nos from (
          select o.no, o.type from treadle.open_item o
          where o.status = 2 and o.queue = at_queue and o.tenant = at_tenant and o.lane = at_lane
          order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 50) h
        where not treadle.has_worker_for(h.type, p_now);
        if nos is not null then
          update treadle.open_item o set status = 3
            where o.no = any(array(select l.no from treadle.open_item l
                                   where l.no = any(nos) and l.status = 2 for update skip locked));
        end if;
      end loop;
    end loop;
  end loop;
end $$;

-- Whether some live worker has a type.
create or replace function treadle.has_worker_for(p_type text, p_now float8) returns boolean
language sql stable as $$
  select exists (select 1 from treadle.worker w
                 where not w.gone and w.until > p_now and (w.types is null or p_type = any(w.types)))
$$;
