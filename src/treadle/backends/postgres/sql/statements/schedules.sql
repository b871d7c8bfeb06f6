-- :name put_schedule
select * from treadle.put_schedule(:name, :next_at, :last_at, :paused, :spec, :again::boolean)

-- :name schedules
select * from treadle.schedule order by name

-- :name drop_schedule
with {runs_dropped}
{schedule_dropped}

-- :name drop_schedule_noted
with {runs_dropped},
changed as ({schedule_dropped}),
{counted},
{noted}
select * from changed

-- :name runs_dropped
runs as (delete from treadle.schedule_run where name = :name),
removed as (
  insert into treadle.removed_schedule as r (name, at) values (:name, treadle.clock())
  on conflict (name) do update set at = excluded.at)

-- :name schedule_dropped
delete from treadle.schedule where name = :name returning name

-- :name schedule_runs
select * from treadle.schedule_runs(:count::int)

-- :name pause_schedule
update treadle.schedule set paused = :paused where name = :name returning name
