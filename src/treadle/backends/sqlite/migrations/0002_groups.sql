UPDATE treadle_meta SET value = 2 WHERE name = 'schema';
