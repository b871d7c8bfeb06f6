-- :name outside
SELECT outside FROM treadle_counter

-- :name mark_outside
UPDATE treadle_counter SET outside = outside + 1
