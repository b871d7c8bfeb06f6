-- :name put_schedule
select * from treadle.put_schedule(:name, :next_at, :last_at, :paused, :spec)

-- :name schedules
select * from treadle.schedule order by name

-- :name drop_schedule
with runs as (delete from treadle.schedule_run where name = :name)
delete from treadle.schedule where name = :name returning name

-- :name schedule_runs
select * from treadle.schedule_runs(:count::int)

-- :name pause_schedule
update treadle.schedule set paused = :paused where name = :name returning name
