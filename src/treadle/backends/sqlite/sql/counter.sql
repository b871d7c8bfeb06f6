-- Two statements take three quarters of the time of one with RETURNING, which fills a table of its own.
-- :name take_numbers
UPDATE treadle_counter SET no = no + ?, seq = seq + ?, token = token + ? WHERE one = 1

-- The last numbers taken.
-- :name numbers_taken
SELECT no, seq, token FROM treadle_counter WHERE one = 1
