//! Takes the tokens of an account's present database to one that was restored from an earlier backup of it.
//!
//! The present rows are newer, and so they win. But a token ends as soon as it does on either side, and one that only the backup
//! has was deleted since, which ends it too: a restore never lets in again what was shut out.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use crate::store::StoreError;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::{Row, Sql, sql};

/// What became of the tokens of a restored database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriedTokens {
    /// How many there are.
    pub all: usize,
    /// How many of them the backup did not have.
    pub created: usize,
    /// How many of them the backup had, and are refused now.
    pub ended: usize,
    /// How many of them the backup had with other limits.
    pub limited: usize,
}

/// All columns, in the order of [`StoredToken`].
const COLUMNS: &str = "id, name, prefix, digest, created_at, created_by, expires_at, revoked_at, replaces, last_used_at, \
    last_used_route, last_used_network, form_key, scopes, forms, networks, requests_per_minute";

/// A row.
#[derive(Clone, Debug, PartialEq)]
struct StoredToken {
    id: i64,
    name: String,
    prefix: String,
    digest: Vec<u8>,
    created_at: Timestamp,
    created_by: Option<String>,
    expires_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
    replaces: Option<i64>,
    last_used_at: Option<Timestamp>,
    last_used_route: Option<String>,
    last_used_network: Option<String>,
    form_key: Option<String>,
    scopes: Option<String>,
    forms: Option<String>,
    networks: Option<String>,
    requests_per_minute: Option<i64>,
}

impl StoredToken {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            prefix: row.get(2)?,
            digest: row.get(3)?,
            created_at: row.get(4)?,
            created_by: row.get(5)?,
            expires_at: row.get(6)?,
            revoked_at: row.get(7)?,
            replaces: row.get(8)?,
            last_used_at: row.get(9)?,
            last_used_route: row.get(10)?,
            last_used_network: row.get(11)?,
            form_key: row.get(12)?,
            scopes: row.get(13)?,
            forms: row.get(14)?,
            networks: row.get(15)?,
            requests_per_minute: row.get(16)?,
        })
    }

    fn is_refused(&self, now: Timestamp) -> bool {
        self.revoked_at.is_some() || self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    fn limits(&self) -> [Option<&str>; 3] {
        [self.scopes.as_deref(), self.forms.as_deref(), self.networks.as_deref()]
    }

    /// The present row, after what the row of the backup still adds to it.
    fn joined_with(mut self, older: &Self) -> Self {
        self.revoked_at = earlier(self.revoked_at, older.revoked_at);
        self.expires_at = earlier(self.expires_at, older.expires_at);
        if older.last_used_at > self.last_used_at {
            self.last_used_at = older.last_used_at;
            self.last_used_route.clone_from(&older.last_used_route);
            self.last_used_network.clone_from(&older.last_used_network);
        }
        self
    }
}

/// The earlier of two instants, if there is one.
fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    [one, other].into_iter().flatten().min()
}

/// The rows that a restored database gets, by id.
fn join(present: Vec<StoredToken>, restored: &[StoredToken], now: Timestamp) -> Vec<StoredToken> {
    let by_id: HashMap<i64, &StoredToken> = restored.iter().map(|token| (token.id, token)).collect();
    let ids: HashSet<i64> = present.iter().map(|token| token.id).collect();
    let keys: HashSet<String> = present.iter().filter_map(|token| token.form_key.clone()).collect();
    let joined = present.into_iter().map(|token| match by_id.get(&token.id) {
        Some(older) if older.digest == token.digest => token.joined_with(older),
        _ => token,
    });
    // Where another token has its id by now, its digest is forgotten, and it is unknown.
    let deleted = restored.iter().filter(|token| !ids.contains(&token.id)).cloned().map(|mut token| {
        token.revoked_at = token.revoked_at.or(Some(now));
        token.form_key = token.form_key.filter(|key| !keys.contains(key));
        token
    });
    let mut all: Vec<_> = joined.chain(deleted).collect();
    all.sort_by_key(|token| token.id);
    // SQLite may have rows that refer to none.
    let known: HashSet<i64> = all.iter().map(|token| token.id).collect();
    for token in &mut all {
        token.replaces = token.replaces.filter(|replaced| *replaced < token.id && known.contains(replaced));
    }
    all
}

async fn read(reader: &mut PooledConnection) -> Result<Vec<StoredToken>, sqlx::Error> {
    let sql = sql!(
        "SELECT {+columns} FROM tokens ORDER BY id {scans: an account has few tokens}",
        columns = Sql::text(COLUMNS),
    );
    reader.fetch_all(sql).await?.iter().map(StoredToken::read).collect()
}

/// Takes the tokens of the present database to the restored one.
pub(in crate::store) async fn carry_tokens(
    present: &mut PooledConnection,
    restored: &mut Transaction,
    now: Timestamp,
) -> Result<CarriedTokens, StoreError> {
    let before = read(restored.connection()).await?;
    let all = join(read(present).await?, &before, now);
    let before: HashMap<i64, &StoredToken> = before.iter().map(|token| (token.id, token)).collect();
    let mut carried = CarriedTokens { all: all.len(), ..CarriedTokens::default() };
    for token in &all {
        let older = before.get(&token.id).copied();
        match older.filter(|older| older.digest == token.digest) {
            None => carried.created += 1,
            Some(older) if token.is_refused(now) && !older.is_refused(now) => carried.ended += 1,
            Some(older) => {
                let is_same =
                    older.limits() == token.limits() && older.requests_per_minute == token.requests_per_minute;
                carried.limited += usize::from(!is_same);
            }
        }
        if older != Some(token) {
            write(restored, token).await?;
        }
    }
    Ok(carried)
}

async fn write(restored: &mut Transaction, token: &StoredToken) -> Result<(), StoreError> {
    let sql = sql!(
        "INSERT INTO tokens ({+columns})
         {pg: OVERRIDING SYSTEM VALUE}
         VALUES ({id}, {name}, {prefix}, {digest}, {created_at}, {created_by}, {expires_at}, {revoked_at}, {replaces},
           {last_used_at}, {last_used_route}, {last_used_network}, {form_key}, {scopes}, {forms}, {networks},
           {requests_per_minute})
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, prefix = excluded.prefix, digest = excluded.digest,
           created_at = excluded.created_at, created_by = excluded.created_by, expires_at = excluded.expires_at,
           revoked_at = excluded.revoked_at, replaces = excluded.replaces, last_used_at = excluded.last_used_at,
           last_used_route = excluded.last_used_route, last_used_network = excluded.last_used_network,
           form_key = excluded.form_key, scopes = excluded.scopes, forms = excluded.forms, networks = excluded.networks,
           requests_per_minute = excluded.requests_per_minute
         {scans: SQLite looks for references to a new row, if others are missing already}",
        columns = Sql::text(COLUMNS),
        id = token.id,
        name = &token.name,
        prefix = &token.prefix,
        digest = token.digest.clone(),
        created_at = token.created_at,
        created_by = token.created_by.clone(),
        expires_at = token.expires_at,
        revoked_at = token.revoked_at,
        replaces = token.replaces,
        last_used_at = token.last_used_at,
        last_used_route = token.last_used_route.clone(),
        last_used_network = token.last_used_network.clone(),
        form_key = token.form_key.clone(),
        scopes = token.scopes.clone(),
        forms = token.forms.clone(),
        networks = token.networks.clone(),
        requests_per_minute = token.requests_per_minute,
    );
    restored.execute(sql).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::schema;

    fn at(second: i64) -> Option<Timestamp> {
        Some(Timestamp::from_second(second).expect("an instant"))
    }

    fn token(id: i64, digest: u8) -> StoredToken {
        StoredToken {
            id,
            name: format!("token {id}"),
            prefix: "fg".to_owned(),
            digest: vec![digest; 32],
            created_at: Timestamp::UNIX_EPOCH,
            created_by: None,
            expires_at: None,
            revoked_at: None,
            replaces: None,
            last_used_at: None,
            last_used_route: None,
            last_used_network: None,
            form_key: None,
            scopes: None,
            forms: None,
            networks: None,
            requests_per_minute: None,
        }
    }

    fn join_one(present: StoredToken, restored: StoredToken) -> StoredToken {
        let mut joined = join(vec![present], &[restored], Timestamp::from_second(99).expect("an instant"));
        assert_eq!(joined.len(), 1);
        joined.remove(0)
    }

    /// Whoever adds a column decides here what a restore does with it.
    #[test]
    fn every_column_is_carried() {
        let shape = schema::shapes().into_iter().find(|shape| shape.name == "tokens").expect("a table");
        let columns: BTreeSet<_> = shape.columns.iter().map(|(name, _)| *name).collect();
        assert_eq!(COLUMNS.split(", ").collect::<BTreeSet<_>>(), columns);
    }

    #[test]
    fn a_token_ends_as_soon_as_it_does_on_either_side() {
        let revoked = |second| StoredToken { revoked_at: at(second), ..token(1, 1) };
        assert_eq!(join_one(revoked(5), token(1, 1)).revoked_at, at(5));
        assert_eq!(join_one(token(1, 1), revoked(5)).revoked_at, at(5), "somebody took it back by SQL");
        assert_eq!(join_one(revoked(7), revoked(5)).revoked_at, at(5));
        let expires = |expires_at| StoredToken { expires_at, ..token(1, 1) };
        assert_eq!(join_one(expires(at(5)), expires(None)).expires_at, at(5));
        assert_eq!(join_one(expires(None), expires(at(9))).expires_at, at(9));
        assert_eq!(join_one(expires(at(8)), expires(at(9))).expires_at, at(8));
    }

    #[test]
    fn the_present_limits_and_the_last_use_win() {
        let narrow = StoredToken { scopes: Some("forms:read".to_owned()), requests_per_minute: Some(5), ..token(1, 1) };
        assert_eq!(join_one(narrow.clone(), token(1, 1)), narrow);
        assert_eq!(join_one(token(1, 1), narrow), token(1, 1), "it was widened since");
        let used = |second, route: &str| StoredToken {
            last_used_at: at(second),
            last_used_route: Some(route.to_owned()),
            ..token(1, 1)
        };
        assert_eq!(join_one(used(9, "new"), used(3, "old")), used(9, "new"));
        assert_eq!(join_one(token(1, 1), used(3, "old")), used(3, "old"));
    }

    #[test]
    fn one_that_is_only_in_the_backup_is_revoked_and_one_whose_id_is_taken_is_forgotten() {
        let [older, other] = [token(1, 1), token(2, 2)];
        let joined = join(vec![token(2, 9)], &[older, other], Timestamp::from_second(99).expect("an instant"));
        assert_eq!(joined[0].revoked_at, at(99));
        assert_eq!(joined[1], token(2, 9));
    }

    #[test]
    fn a_token_that_was_created_since_keeps_its_digest_and_what_it_replaces() {
        let new = StoredToken { replaces: Some(1), ..token(2, 2) };
        let joined = join(vec![token(1, 1), new.clone()], &[token(1, 1)], Timestamp::UNIX_EPOCH);
        assert_eq!(joined, [token(1, 1), new]);
        let lost = StoredToken { replaces: Some(7), ..token(8, 2) };
        assert_eq!(join_one(lost, token(8, 2)).replaces, None, "there is no such token");
    }
}
