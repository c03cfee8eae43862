CREATE STREAM calls (
  id STRING NOT NULL, user_id INT, model STRING, paid BOOLEAN, tokens INT, at TIMESTAMP NOT NULL,
  sent TIMESTAMP, place STRUCT<code: STRING, zip: STRING>
)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE SENT sent;

CREATE TABLE prices (
  model STRING, price DECIMAL(12, 6), active BOOLEAN, valid_from TIMESTAMP, version BIGINT,
  PRIMARY KEY (model)
)
SEQUENCE BY version
WITH HISTORY VALID FROM valid_from FOR INTERVAL 400 DAYS;

CREATE TABLE users (
  Id BIGINT, name STRING, region STRING, owner STRUCT<name: STRING>, PRIMARY KEY (id)
);

CREATE STREAM region_changes (country STRING, code STRING, title STRING, tax DECIMAL(30, 4), gone BOOLEAN);

CREATE TABLE regions FROM region_changes KEY (code, country)
APPLY AS DELETE WHEN gone COLUMNS * EXCEPT (gone);

CREATE MATERIALIZED VIEW by_position AS
SELECT c.id, c.user_id, p.price FROM calls c JOIN prices p ON p.model = c.model;

CREATE MATERIALIZED VIEW as_of AS
SELECT c.id, price * tokens AS cost
FROM calls c JOIN prices FOR SYSTEM_TIME AS OF c.at AS p ON c.model = p.model;

-- Another alias and another order of conditions are the same look-up.
CREATE MATERIALIZED VIEW as_of_again AS
SELECT prices.price FROM Calls
INNER JOIN Prices FOR SYSTEM_TIME AS OF calls.at
ON (prices.active AND (Prices.Model) = calls.MODEL) AND calls.paid;

CREATE MATERIALIZED VIEW chained AS
SELECT c.id, r.*, u.owner.name AS owner_name, upper(title) AS loud
FROM calls AS c
LEFT JOIN users u ON u.id = user_id AND u.region <> 'x' AND c.paid
LEFT OUTER JOIN regions r ON r.country = 'DE' AND r.code = u.region
WHERE r.title IS NULL OR tokens > 3;

CREATE MATERIALIZED VIEW waiting AS
SELECT c.model, window.start AS minute, sum(p.price * c.tokens) AS cost, avg(tax) AS tax,
       count(p.price) AS priced, count(DISTINCT u.region) AS regions
FROM calls c
JOIN users u ON u.id = c.user_id ELSE DEAD LETTER
JOIN prices FOR SYSTEM_TIME AS OF c.at - INTERVAL 1 HOUR p
  ON p.model = c.model AND p.active AND paid WAIT UP TO INTERVAL '10' MINUTES ELSE DEAD LETTER
LEFT JOIN regions r ON r.code = c.place.code AND r.country = u.region AND r.tax > 0
WHERE c.tokens > 0 AND u.name IS NOT NULL AND p.price > 1
GROUP BY window(c.at, '1 minute'), c.model
HAVING priced > 1 AND max(price) < 100;

CREATE MATERIALIZED VIEW sessions AS
SELECT u.region, session_window.start AS s, count(*) AS n, last(r.title) AS title
FROM calls JOIN users u ON u.id = user_id
LEFT JOIN regions r ON r.code = u.region AND r.country = 'DE' AND r.tax > 1
GROUP BY session_window(at, '10 minutes'), u.region;

CREATE MATERIALIZED VIEW sliding AS
SELECT c.id, p.active, avg(p.price) OVER (PARTITION BY p.active ORDER BY c.at
  RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) AS mean
FROM calls c LEFT JOIN prices p ON p.model = c.model AND p.active WAIT UP TO INTERVAL 1 DAY;

CREATE MATERIALIZED VIEW paired AS
SELECT users.name, friends.name AS friend, calls.*
FROM calls JOIN users ON users.id = user_id JOIN users AS friends ON friends.id = tokens + 1;

CREATE MATERIALIZED VIEW own AS
SELECT region_changes.title, r.title AS before FROM region_changes
LEFT JOIN regions r ON r.code = upper(region_changes.code) AND r.country = region_changes.country;

-- Names of outputs and of the window stay what they are.
CREATE TABLE words (id STRING PRIMARY KEY, window STRING, total INT, minute STRING) WITH HISTORY;

CREATE MATERIALIZED VIEW named AS
SELECT window.start AS minute, w.window AS word, sum(w.total) AS total, max(total) AS most,
       max(timestampdiff(MINUTE, at, at)) AS zero
FROM calls JOIN words AS w FOR SYSTEM_TIME AS OF at ON (calls.id = w.id)
GROUP BY window(at, '1 hour'), w.window HAVING total > 3 AND sum(total) > 4;
