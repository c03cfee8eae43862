CREATE STREAM orders (
  id BIGINT NOT NULL, revision INT, `order` STRING, item STRUCT<name: STRING, tags: ARRAY<STRING>>,
  placed_at TIMESTAMP NOT NULL
) WATERMARK placed_at DELAY OF INTERVAL 0 SECONDS LATE REVISE;

CREATE MATERIALIZED VIEW everything AS SELECT * FROM orders;
CREATE MATERIALIZED VIEW per_event AS
SELECT o.id, item.name AS name, o.item.tags[0] AS tag, revision * 2 AS twice, `order`
FROM orders o WHERE o.item.name IS NOT NULL AND exists(item.tags, t -> t = 'new');
CREATE MATERIALIZED VIEW names AS SELECT DISTINCT item.name, upper(`Order`) AS o FROM orders;
CREATE MATERIALIZED VIEW by_alias AS
SELECT date_trunc('DAY', placed_at) AS day, item.name, count(*) AS n FROM orders GROUP BY day, 2;
CREATE MATERIALIZED VIEW by_all AS
SELECT revision, timestampdiff(hour, placed_at, placed_at) AS h, max(id) AS m FROM orders
GROUP BY ALL;
CREATE MATERIALIZED VIEW hoisted AS
SELECT revision, concat('r', revision) AS label, revision + 1 AS next,
       CASE WHEN revision > 1 THEN count(*) ELSE 0 END AS n, 'x' AS x, length(item.name) AS l
FROM orders GROUP BY revision, item.name;
CREATE MATERIALIZED VIEW overall AS
SELECT count(*) AS n, try_divide(sum(revision), count(*)) AS mean, 1 AS one FROM orders
HAVING n > 0;
