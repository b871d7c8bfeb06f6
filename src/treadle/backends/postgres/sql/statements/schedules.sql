-- :name put_schedule
select * from treadle.put_schedule(:name, :next_at, :last_at, :paused, :spec)

-- :name schedules
select * from treadle.schedule order by name

-- :name drop_schedule
delete from treadle.schedule where name = :name returning name

-- :name pause_schedule
update treadle.schedule set paused = :paused where name = :name returning name
