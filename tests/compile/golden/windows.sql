CREATE STREAM clicks (page STRING, seen_at TIMESTAMP NOT NULL) EVENT TIME seen_at LATE REVISE;

CREATE MATERIALIZED VIEW hopping AS
SELECT window, page, count(*) AS clicks FROM clicks
GROUP BY window(seen_at, '1 hour', '25 minutes', '5 minutes'), page;

CREATE MATERIALIZED VIEW spelled AS
SELECT window(seen_at, '90 minutes').start AS since, count(page) AS pages FROM clicks
GROUP BY window(SEEN_AT, '1 hour 30 minutes');

CREATE STREAM pings (host STRING NOT NULL) INTO 2 PARTITIONS;

CREATE MATERIALIZED VIEW per_minute AS
SELECT window.end AS minute, host, count(*) AS pings FROM pings
GROUP BY window(_received_at, '1 minute'), host;
