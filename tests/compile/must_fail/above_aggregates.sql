CREATE STREAM s (id STRING NOT NULL, amount DECIMAL(18, 2), size INT, tags ARRAY<STRING>, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE;
CREATE MATERIALIZED VIEW v1 AS SELECT sum(amount) / sum(size) AS a FROM s;
CREATE MATERIALIZED VIEW v2 AS SELECT sum(amount) / count(*) AS a FROM s;
CREATE MATERIALIZED VIEW v3 AS SELECT id, sum(amount) / 0 AS a, sum(size) % 2 AS b, sqrt(sum(size)) AS c, TRY_CAST(sum(size) AS STRING) AS d FROM s GROUP BY id;
CREATE MATERIALIZED VIEW v4 AS SELECT date_format(window.start, 'HH') AS h, window.end + INTERVAL 1 DAY AS e, count(*) AS n FROM s GROUP BY window(at, '1 hour');
CREATE MATERIALIZED VIEW v5 AS SELECT id, upper(max(id)) AS u, round() AS r, array(sum(size)) AS a FROM s GROUP BY id HAVING sum(size) LIKE 'x';
