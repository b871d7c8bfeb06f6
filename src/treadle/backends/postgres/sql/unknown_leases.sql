-- The leases of a worker whose tokens it does not know.
create or replace function treadle.unknown_leases(p_worker text, p_known bigint[])
returns table (
  id text, tenant text, token bigint, type text, input bytea, attempt int, group_id text, queue text, lane text,
  priority int, attempts int, parent text, workflow text, workflow_type text, after text[], options bytea,
  queued float8, due float8, claimed float8, deadline float8, verdict smallint, no bigint)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select i.id, i.tenant, j.token, i.type, i.input, j.attempt, coalesce(i.group_id, i.id), i.queue, i.lane,
      i.priority, i.attempts, i.parent, i.workflow, i.workflow_type, i.after, i.options, i.queued, j.due,
      coalesce(j.claimed, j.since), j.deadline, j.verdict, j.no
    from treadle.worker w
    join treadle.job j on j.worker = w.no and j.status = 5
    join treadle.item i on i.no = j.no
    where w.id = p_worker and not w.gone and j.token <> all(p_known)
    order by j.token;
end $$;
