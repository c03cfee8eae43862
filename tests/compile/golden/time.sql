CREATE STREAM readings (sensor STRING NOT NULL, status STRING, amount DECIMAL(18, 2), at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE
PARTITION BY (sensor) INTO 4 PARTITIONS;

CREATE MATERIALIZED VIEW sessions AS
SELECT session_window.start AS began, window.end AS ended, sensor, count(*) AS n, last(status) AS last
FROM readings GROUP BY session_window(at, '10 minutes'), sensor HAVING n > 1;

CREATE MATERIALIZED VIEW monthly AS
SELECT calendar_window(at, 'Month', 'Europe/Berlin').start AS month, sensor, sum(amount) AS total
FROM readings WHERE status = 'paid'
GROUP BY sensor, calendar_window(AT, 'month', 'Europe/Berlin') EMIT ON WINDOW CLOSE;

CREATE MATERIALIZED VIEW deliveries AS
SELECT window.start AS picked_up, window.end AS delivered, upper(sensor) AS parcel, count(*) AS steps,
       window
FROM readings WHERE amount > 0
GROUP BY event_group(Status = 'picked_up', status = 'delivered', '2 hours'), sensor, upper(sensor)
HAVING window.start > TIMESTAMP '2026-01-01 00:00:00';
