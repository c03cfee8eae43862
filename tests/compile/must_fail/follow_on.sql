-- One mistake is one fault: what reads the stream is not blamed for it.
CREATE STREAM misspelt (n BIGINT NOT NULL, created_at TIMESTAMP NOT NULL)
WATERMARK createdat DELAY OF INTERVAL 5 SECONDS LATE REVISE;
CREATE MATERIALIZED VIEW windowed AS
SELECT window.start AS window_start, count(*) AS n FROM misspelt GROUP BY window(created_at, '3 seconds');

CREATE STREAM no_comma (
  n BIGINT NOT NULL
  user_id STRING NOT NULL
);
CREATE MATERIALIZED VIEW by_user AS SELECT user_id, count(*) AS n FROM no_comma GROUP BY user_id;
CREATE MATERIALIZED VIEW elsewhere AS SELECT count(*) AS n FROM no_such_stream;

CREATE STREAM sound (n BIGINT NOT NULL);
CREATE MATERIALIZED VIEW no_end AS SELECT count(*) AS n FROM sound
CREATE MATERIALIZED VIEW next AS SELECT sum(n) AS n FROM sound;
