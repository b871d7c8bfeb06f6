-- :name take_numbers
UPDATE treadle_counter SET no = no + ?, seq = seq + ?, token = token + ? RETURNING no, seq, token
