-- :name data_version
PRAGMA data_version

-- :name user_submits
SELECT user_submits FROM treadle_counter

-- :name count_user_submit
UPDATE treadle_counter SET user_submits = user_submits + 1
