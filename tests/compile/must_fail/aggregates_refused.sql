CREATE STREAM s (id STRING NOT NULL, amount DECIMAL(18, 2), size INT, tags ARRAY<STRING>, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE;
CREATE MATERIALIZED VIEW v1 AS SELECT approx_count_distinct(id) AS a, percentile(size, 0.5) AS p, collect_list(id) AS l, median(size) AS m, corr(size, size) AS c FROM s;
CREATE MATERIALIZED VIEW v2 AS SELECT sum(DISTINCT size) AS a, sum(*) AS b, sum(size, size) AS c, min_by(id) AS d, avg() AS e FROM s;
CREATE MATERIALIZED VIEW v3 AS SELECT sum(id) AS a, avg(at) AS b, min(tags) AS c, bool_and(size) AS d, sum(size) IGNORE NULLS AS e, stddev(tags) AS f FROM s;
CREATE MATERIALIZED VIEW v4 AS SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY size) AS p FROM s;
