UPDATE treadle_meta SET value = 3 WHERE name = 'schema';
