CREATE STREAM s (id STRING NOT NULL, amount DECIMAL(18, 2), size INT, tags ARRAY<STRING>, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE;
CREATE MATERIALIZED VIEW v1 AS SELECT count(*) AS n FROM s GROUP BY window(size, '3 seconds');
CREATE MATERIALIZED VIEW v2 AS SELECT count(*) AS n FROM s GROUP BY window(at, '1 month');
CREATE MATERIALIZED VIEW v3 AS SELECT count(*) AS n FROM s GROUP BY window(at, '1 minute', '2 minutes');
CREATE MATERIALIZED VIEW v4 AS SELECT count(*) AS n FROM s GROUP BY window(at);
CREATE MATERIALIZED VIEW v5 AS SELECT count(*) AS n FROM s GROUP BY window(at, '1 minute'), window(at, '2 minutes');
CREATE MATERIALIZED VIEW v6 AS SELECT window.middle AS m, count(*) AS n FROM s GROUP BY window(at, '1 minute');
CREATE MATERIALIZED VIEW v7 AS SELECT window(at, '1 hour').start AS w, count(*) AS n FROM s GROUP BY window(at, '1 minute');
CREATE MATERIALIZED VIEW v8 AS SELECT window(at, '1 hour') AS w FROM s;
CREATE MATERIALIZED VIEW v9 AS SELECT count(*) AS n FROM s GROUP BY window(at, '0 seconds');
CREATE MATERIALIZED VIEW v10 AS SELECT count(*) AS n FROM s GROUP BY window(at, '1 hour', '1 millisecond 1 microsecond');
CREATE MATERIALIZED VIEW v11 AS SELECT count(*) AS n FROM s GROUP BY window(at, size);
CREATE MATERIALIZED VIEW v12 AS SELECT count(*) AS n FROM s GROUP BY window(at, 'soon');
CREATE MATERIALIZED VIEW v13 AS SELECT count(*) AS n FROM s GROUP BY window(at, '1 hour', '1 hour', '2 hours');
CREATE MATERIALIZED VIEW v14 AS SELECT window.start AS w FROM s;
CREATE MATERIALIZED VIEW v15 AS SELECT count(*) AS n FROM s GROUP BY tumble(at, INTERVAL '10' SECOND);
