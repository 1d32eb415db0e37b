CREATE TABLE IF NOT EXISTS readings (id serial PRIMARY KEY, sensor text NOT NULL, value real NOT NULL);
