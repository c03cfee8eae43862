CREATE STREAM readings (
  sensor STRING NOT NULL, value DOUBLE, total BIGINT, price DECIMAL(30, 4), ok BOOLEAN,
  at TIMESTAMP NOT NULL
) WATERMARK at DELAY OF INTERVAL 1 MINUTE LATE REVISE;

CREATE MATERIALIZED VIEW every_aggregate AS
SELECT sensor, count(*) AS c, count(value) AS cv, count(value, ok) AS cvo, sum(value) AS s,
       avg(value) AS a, mean(total) AS t, avg(price) AS p, min(value) AS low, max(value) AS high,
       count(DISTINCT value) AS d, count(DISTINCT value, ok) FILTER (WHERE ok) AS df,
       first(value) AS f, last(value) IGNORE NULLS AS l, first_value(value, true) AS fv,
       min_by(value, price) AS mb, max_by(value, price) FILTER (WHERE ok) AS xb,
       stddev(value) AS sd, var_pop(value) AS vp, count_if(value > 3) AS ci,
       bool_and(ok) AS ba, some(ok) AS bo, sum(value) FILTER (WHERE ok AND value > 0) AS sf
FROM readings GROUP BY sensor;

CREATE MATERIALIZED VIEW shared AS
SELECT sum(price) AS s, avg(price) AS a, count(price) AS c, stddev(value) AS sd, variance(value) AS v
FROM readings;
