//! The request log: the last requests of an account, written behind them ([`super::tokens`]), and read newest first.
//!
//! A row is identified by the instant at which its request arrived and a number of the node. So a batch whose commit was
//! not answered can be written again: rows that are there stay as they are. Refusals that anybody can cause are counted
//! instead of listed, and such a row is written again with its new count for as long as its minute lasts.
//!
//! Whoever lists requests passes those that are not written yet. They are taken before the database is read, so that a
//! row which is written in the meantime is found at least once; one that is found twice is listed once.
//!
//! Rows of counted refusals are kept separately from the others: a flood of bad tokens must not push out what an
//! administrator looks for.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::engine::{PooledConnection, Transaction};
use super::statement::{JsonRows, JsonTimestamp, Row, Sql, sql};
use super::{Store, StoreError};

/// How long rows are kept.
///
/// Larger: the log is about people for longer. Smaller: what happened over a weekend is gone on Monday.
const KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How many rows are kept at least: of single requests, and again of counted refusals.
///
/// Larger: the database grows, by some 150 bytes a row on SQLite and 230 on Postgres. Smaller: a busy account sees less of
/// its past.
pub(crate) const KEPT_ROWS: u32 = 10_000;

/// How many further rows are written before old ones are deleted.
///
/// Larger: more rows than are promised. Smaller: deleting costs more than writing.
pub(crate) const ROWS_BETWEEN_DELETIONS: usize = 1_000;

/// The reasons that only the stored token shows. The words are those of `error::RefusalReason`, a layer above.
const REVOKED: &str = "token_revoked";
const EXPIRED: &str = "token_expired";

/// Identifies a row, and gives it its place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    /// When the request arrived, in microseconds since 1970.
    pub at: i64,
    /// Distinguishes requests of the same instant.
    pub number: i64,
}

impl RequestKey {
    /// When the request arrived. The last instant if there is no such one.
    #[must_use]
    pub fn instant(self) -> Timestamp {
        Timestamp::from_microsecond(self.at).unwrap_or(Timestamp::MAX)
    }
}

/// A row of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Its place.
    pub key: RequestKey,
    /// The id of the request.
    pub id: String,
    /// The number of the token.
    pub token: Option<i64>,
    /// The name of the token; `None` in a row that was not read by [`Store::list_requests`].
    pub token_name: Option<String>,
    /// The beginning of what was sent as a token, if it was refused and had the form of one.
    pub prefix: Option<String>,
    /// SHA-256 of a refused token. It is looked up before the row is stored or listed, and not stored.
    pub digest: Option<[u8; 32]>,
    /// The method.
    pub method: String,
    /// The path of the endpoint, with names in place of values.
    pub route: Option<String>,
    /// The status of the response.
    pub status: u16,
    /// How long it took, in milliseconds.
    pub duration_ms: u32,
    /// How many rows the response had.
    pub rows: Option<u32>,
    /// The network of the caller.
    pub network: Option<String>,
    /// The `User-Agent`, shortened.
    pub agent: Option<String>,
    /// Why it was refused.
    pub reason: Option<String>,
    /// How many refusals the row counts; `None` for a single request.
    pub counted: Option<u32>,
}

/// What is to be written to the log.
#[derive(Clone, Debug, Default)]
pub struct UnwrittenRequests {
    /// New rows, and rows with a new count.
    pub rows: Vec<LoggedRequest>,
    /// Whether old rows are deleted.
    pub deletes_old: bool,
}

/// Which requests are listed: those that match all that is given.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// With this token, or refused for it.
    pub token: Option<i64>,
    /// With a status in this range.
    pub statuses: Option<(u16, u16)>,
    /// That arrived at this instant or later.
    pub since: Option<Timestamp>,
}

impl RequestFilter {
    /// Parses a status, such as `429`, or a class of them, such as `4xx`.
    #[must_use]
    pub fn parse_statuses(text: &str) -> Option<(u16, u16)> {
        let bytes = text.as_bytes();
        let is_class = bytes.len() == 3 && (b'1'..=b'5').contains(&bytes[0]);
        if is_class && text[1..].eq_ignore_ascii_case("xx") {
            let first = u16::from(bytes[0] - b'0') * 100;
            return Some((first, first + 99));
        }
        let status: u16 = text.parse().ok().filter(|_| is_class && bytes.iter().all(u8::is_ascii_digit))?;
        Some((status, status))
    }

    fn matches(&self, request: &LoggedRequest) -> bool {
        self.token.is_none_or(|token| request.token == Some(token))
            && self.statuses.is_none_or(|(from, to)| (from..=to).contains(&request.status))
            && self.since.is_none_or(|since| request.key.at >= since.as_microsecond())
    }
}

const COLUMNS: &str = "at, number, id, token, prefix, method, route, status, duration_ms, row_count, network, agent, \
    reason, counted";

impl LoggedRequest {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let number =
            |column| Ok::<_, sqlx::Error>(row.get::<Option<i64>>(column)?.and_then(|it| u32::try_from(it).ok()));
        Ok(Self {
            key: RequestKey { at: row.get::<Timestamp>(0)?.as_microsecond(), number: row.get(1)? },
            id: row.get(2)?,
            token: row.get(3)?,
            token_name: None,
            prefix: row.get(4)?,
            digest: None,
            method: row.get(5)?,
            route: row.get(6)?,
            status: u16::try_from(row.get::<i64>(7)?).unwrap_or_default(),
            duration_ms: number(8)?.unwrap_or(u32::MAX),
            rows: number(9)?,
            network: row.get(10)?,
            agent: row.get(11)?,
            reason: row.get(12)?,
            counted: number(13)?,
        })
    }
}

/// Writes rows that are not there, and new counts of those that are.
pub(super) async fn write(
    transaction: &mut Transaction,
    unwritten: &UnwrittenRequests,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let mut requests = Cow::Borrowed(&unwritten.rows[..]);
    if requests.iter().any(|request| request.digest.is_some()) {
        identify(transaction.connection(), requests.to_mut()).await?;
    }
    let dialect = transaction.dialect();
    let mut rows = JsonRows::new();
    for row in &*requests {
        rows.push(&(
            JsonTimestamp::new(row.key.instant(), dialect),
            row.key.number,
            &row.id,
            row.token,
            &row.prefix,
            &row.method,
            &row.route,
            row.status,
            row.duration_ms,
            row.rows,
            &row.network,
            &row.agent,
            &row.reason,
            row.counted,
        ));
    }
    let insert = sql!(
        "INSERT INTO request_log (at, number, id, token, prefix, method, route, status, duration_ms, row_count, network, agent,
           reason, counted)
         SELECT at, number, id, token, prefix, method, route, status, duration_ms, row_count, network, agent, reason, counted
         FROM {rows rows: at timestamptz, number bigint, id text, token bigint, prefix text, method text, route text,
           status bigint, duration_ms bigint, row_count bigint, network text, agent text, reason text, counted bigint} AS batch
         WHERE true
         ON CONFLICT (at, number) DO UPDATE SET counted = excluded.counted
           WHERE request_log.counted < excluded.counted",
        rows = rows.text(),
    );
    if !rows.is_empty() {
        transaction.execute(insert).await?;
    }
    if unwritten.deletes_old && transaction.deletes_old_rows() {
        transaction.execute(sql!("DELETE FROM request_log WHERE at < {oldest}", oldest = now - KEPT)).await?;
        for is_counted in [sql!("counted IS NULL"), sql!("counted IS NOT NULL")] {
            let oldest = sql!(
                "SELECT at FROM request_log WHERE {+is_counted}
                 ORDER BY at DESC, number DESC LIMIT 1 OFFSET {kept}
                 {scans: it reads little more than what is kept, and once for many rows that were written}",
                is_counted = is_counted.clone(),
                kept = KEPT_ROWS,
            );
            let Some(oldest) = transaction.connection().fetch_optional(oldest).await? else { continue };
            let delete = sql!(
                "DELETE FROM request_log WHERE at <= {oldest} AND {+is_counted}",
                oldest = oldest.get::<Timestamp>(0)?,
                is_counted,
            );
            transaction.execute(delete).await?;
        }
    }
    Ok(())
}

/// Looks up refused tokens: one that was revoked or has expired is named, and its reason says so.
async fn identify(connection: &mut PooledConnection, requests: &mut [LoggedRequest]) -> Result<(), sqlx::Error> {
    let hex = |digest: &[u8; 32]| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut sent = JsonRows::new();
    let mut refused: HashMap<Vec<u8>, Vec<&mut LoggedRequest>> = HashMap::new();
    for request in requests {
        if let Some(digest) = request.digest.take() {
            sent.push(&[hex(&digest)]);
            refused.entry(digest.to_vec()).or_default().push(request);
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    let find = sql!(
        "SELECT tokens.id, tokens.digest, tokens.revoked_at, tokens.expires_at
         FROM {rows sent: digest text} AS sent
         JOIN tokens ON tokens.digest = {pg: decode(sent.digest, 'hex') | lite: unhex(sent.digest)}
         {scans: an account has few tokens}",
        sent = sent.text(),
    );
    for row in &connection.fetch_all(find).await? {
        let (id, digest): (i64, Vec<u8>) = (row.get(0)?, row.get(1)?);
        let (revoked_at, expires_at): (Option<Timestamp>, Option<Timestamp>) = (row.get(2)?, row.get(3)?);
        for request in refused.get_mut(&digest).into_iter().flatten() {
            let has_passed = |at: Option<Timestamp>| at.is_some_and(|at| at <= request.key.instant());
            let reason = match (has_passed(revoked_at), has_passed(expires_at)) {
                (true, _) => Some(REVOKED),
                (false, true) => Some(EXPIRED),
                (false, false) => None,
            };
            request.token = Some(id);
            request.reason = reason.map(ToOwned::to_owned).or(request.reason.take());
        }
    }
    Ok(())
}

/// Adds the names of the tokens.
async fn name_tokens(connection: &mut PooledConnection, requests: &mut [LoggedRequest]) -> Result<(), sqlx::Error> {
    let tokens: Vec<i64> = requests.iter().filter_map(|request| request.token).collect();
    if tokens.is_empty() {
        return Ok(());
    }
    let rows = connection.fetch_all(sql!("SELECT id, name FROM tokens WHERE id {in tokens}", tokens)).await?;
    let names = rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?)));
    let names = names.collect::<Result<HashMap<i64, String>, sqlx::Error>>()?;
    for request in requests {
        request.token_name = request.token.and_then(|token| names.get(&token)).cloned();
    }
    Ok(())
}

impl Store {
    /// The requests that match a filter, the newest first, at most `limit`; those after the row `after`, if given. `held`
    /// are those that this node has not written; the caller took them before this call.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_requests(
        &self,
        filter: &RequestFilter,
        after: Option<RequestKey>,
        limit: u32,
        mut held: Vec<LoggedRequest>,
        now: Timestamp,
    ) -> Result<Vec<LoggedRequest>, StoreError> {
        let since = filter.since.map_or(now - KEPT, |since| since.max(now - KEPT));
        let filter = RequestFilter { since: Some(since), ..filter.clone() };
        let after = after.unwrap_or(RequestKey { at: Timestamp::MAX.as_microsecond(), number: i64::MAX });
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM request_log
             WHERE (at, number) < ({at}, {number}) AND at >= {since}{+filter}
             ORDER BY at DESC, number DESC LIMIT {limit}",
            columns = Sql::text(COLUMNS),
            at = after.instant(),
            number = after.number,
            since,
            filter = conditions(&filter),
            limit,
        );
        let rows = reader.fetch_all(sql).await?;
        let stored = rows.iter().map(LoggedRequest::read).collect::<Result<Vec<_>, _>>()?;
        identify(&mut reader, &mut held).await?;
        held.retain(|request| request.key < after && filter.matches(request));
        let mut listed: BTreeMap<RequestKey, LoggedRequest> = BTreeMap::new();
        // What is held has the newer count.
        for request in stored.into_iter().chain(held) {
            listed.insert(request.key, request);
        }
        let mut listed: Vec<_> = listed.into_values().rev().take(limit as usize).collect();
        name_tokens(&mut reader, &mut listed).await?;
        Ok(listed)
    }

    /// The request with a key, also of `held`, as for [`Self::list_requests`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_request(
        &self,
        key: RequestKey,
        held: Vec<LoggedRequest>,
        now: Timestamp,
    ) -> Result<Option<LoggedRequest>, StoreError> {
        let next = RequestKey { number: key.number.saturating_add(1), ..key };
        let found = self.list_requests(&RequestFilter::default(), Some(next), 1, held, now).await?;
        Ok(found.into_iter().next().filter(|request| request.key == key))
    }
}

/// The conditions of a filter besides the instant, each after ` AND `.
fn conditions(RequestFilter { token, statuses, since: _ }: &RequestFilter) -> Sql {
    let conditions = [
        token.map(|token| sql!(" AND token = {token}", token)),
        statuses
            .map(|(from, to)| sql!(" AND status BETWEEN {from} AND {to}", from = u32::from(from), to = u32::from(to))),
    ];
    Sql::joined(conditions.into_iter().flatten(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_or_a_class_of_them_is_read() {
        for (text, expected) in [
            ("429", Some((429, 429))),
            ("4xx", Some((400, 499))),
            ("5XX", Some((500, 599))),
            ("6xx", None),
            ("600", None),
            ("4x", None),
            ("+42", None),
            ("4äx", None),
            ("", None),
        ] {
            assert_eq!(RequestFilter::parse_statuses(text), expected, "{text}");
        }
    }
}
