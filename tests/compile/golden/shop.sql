CREATE STREAM transactions (
  id STRING NOT NULL,
  user_id STRING NOT NULL,
  amount DECIMAL(18, 2) NOT NULL,
  currency STRING NOT NULL,
  status STRING NOT NULL,
  created_at TIMESTAMP NOT NULL
)
WATERMARK created_at DELAY OF INTERVAL 5 SECONDS
LATE REVISE
PARTITION BY (user_id) INTO 4 PARTITIONS
RETAIN 7 DAYS UP TO 10 GB THEN ARCHIVE;

CREATE MATERIALIZED VIEW income AS
SELECT window.start AS window_start, window.end AS window_end,
       sum(amount) AS income, count(*) AS payments, avg(amount) AS average
FROM transactions
WHERE status = 'paid'
GROUP BY window(created_at, '3 seconds');

CREATE MATERIALIZED VIEW income_by_user AS
SELECT window.start AS window_start, window.end AS window_end, t.USER_ID,
       sum(t.amount) AS income, count(*) AS payments
FROM Transactions AS t
WHERE t.status = "paid" -- a comment
GROUP BY user_id, window(t.created_at, INTERVAL 3 SECONDS)
HAVING income > 0;
