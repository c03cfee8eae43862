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

CREATE STREAM devices (device STRING NOT NULL, seq BIGINT, at TIMESTAMP NOT NULL, sent_at TIMESTAMP)
WATERMARK at DELAY OF INTERVAL 5 SECONDS
FUTURE UP TO INTERVAL 1 HOUR
IDLE AFTER INTERVAL 30 SECONDS
LATE REVISE WITHIN INTERVAL 1 DAY
SENT sent_at SKEW OVER INTERVAL 3 SECONDS CAP INTERVAL '2' DAYS
DEDUPLICATE BY (Device, seq) WITHIN INTERVAL 1 HOUR
EXPECT EVERY INTERVAL 1 MINUTE
PARTITION BY (device) INTO 4 PARTITIONS RETAIN 7 DAYS;

CREATE STREAM plain (at TIMESTAMP NOT NULL, sent TIMESTAMP NOT NULL) EVENT TIME at LATE HALT SENT sent;
CREATE STREAM meters (plant INT NOT NULL, meter STRING NOT NULL, seq INT NOT NULL, at TIMESTAMP NOT NULL)
EVENT TIME at LATE DROP NUMBERED BY Seq PER (plant, Meter) EXPECT EVERY INTERVAL 1 MINUTE
PARTITION BY (meter) INTO 2 PARTITIONS;
CREATE STREAM sided (at TIMESTAMP NOT NULL) EVENT TIME at LATE side;
CREATE STREAM dropped (at TIMESTAMP NOT NULL) LATE drop WATERMARK at;

CREATE MATERIALIZED VIEW clocked AS
SELECT window.start AS since, device, count(*) AS n, count_if(_quality = 'exact') AS exact,
       max(_skew) AS skew
FROM devices GROUP BY window(at, '1 minute'), device;

CREATE MATERIALIZED VIEW clocked_sessions AS
SELECT window.start AS since, device, count(*) AS n
FROM devices GROUP BY session_window(at, '1 minute'), device;

CREATE MATERIALIZED VIEW clocked_over AS
SELECT device, at, count(*) OVER (PARTITION BY device ORDER BY at RANGE INTERVAL 1 MINUTE PRECEDING) AS n
FROM devices;
