CREATE STREAM payments (
  id STRING NOT NULL,
  user_id STRING NOT NULL,
  amount DECIMAL(18, 2) NOT NULL,
  paid_at TIMESTAMP NOT NULL
)
WATERMARK paid_at DELAY OF INTERVAL 5 SECONDS
IDLE AFTER INTERVAL 2 MINUTES
LATE REVISE
DEDUPLICATE BY (id) WITHIN INTERVAL 1 HOUR;

CREATE MATERIALIZED VIEW income AS
SELECT window.start AS minute, user_id, sum(amount) AS total, count(*) AS payments
FROM payments
GROUP BY window(paid_at, '1 minute'), user_id;
