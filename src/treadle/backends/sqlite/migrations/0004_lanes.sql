UPDATE treadle_meta SET value = 4 WHERE name = 'schema';
