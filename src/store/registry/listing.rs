//! Lists domains, by their states as they are shown: those whose certificates have expired among those that fail.

use std::time::Duration;

use super::Registry;
use super::domains::{DomainRecord, DomainState, select_domains};
use crate::store::StoreError;
use crate::store::statement::Sql;

/// How many domains are listed whose certificates have expired since a node looked at them.
///
/// Larger: a longer statement. Smaller: while no node works on domains, lists of what fails lack some.
const MAX_LAPSED: i64 = 10_000;

/// Which domains a list has.
#[derive(Clone, Copy, Debug, Default)]
pub struct DomainFilter<'f> {
    /// Those of one tenant.
    pub slug: Option<&'f str>,
    /// Those in one state.
    pub state: Option<DomainState>,
    /// Those after a host and a tenant, in alphabetical order.
    pub after: (&'f str, &'f str),
}

impl Registry {
    /// Domains in alphabetical order.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_domains(&self, filter: &DomainFilter<'_>, limit: u32) -> Result<Vec<DomainRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let select = |push_state: &dyn Fn(&mut Sql)| {
            let mut sql = select_domains(self);
            sql.push(" WHERE (host, slug) > (").bind(filter.after.0).push(", ").bind(filter.after.1).push(")");
            if let Some(slug) = filter.slug {
                sql.push(" AND slug = ").bind(slug);
            }
            push_state(&mut sql);
            sql.push(" ORDER BY host, slug LIMIT ").bind(i64::from(limit));
            sql
        };
        let stored = select(&|sql| {
            match filter.state {
                Some(state) => sql.push(" AND state = ").bind(state.as_str()),
                None => sql.push(" AND state <> 'removed'"),
            };
            if filter.state == Some(DomainState::Live) {
                sql.push(" AND NOT ");
                push_has_lapsed(sql);
            }
        });
        let mut domains = DomainRecord::read_all(&reader.fetch_all(stored).await?)?;
        if filter.state == Some(DomainState::Failing) {
            // Few, since a node soon stores that they fail, and the last ones whose certificates have expired. Found in a
            // statement of its own: joined with these, Postgres goes through all domains.
            let mut sql = reader.sql();
            sql.push("SELECT host FROM registry_certificates WHERE chain IS NOT NULL AND not_after <= (SELECT ");
            sql.push_now_plus(Duration::ZERO).push(") ORDER BY not_after DESC LIMIT ").bind(MAX_LAPSED);
            let rows = reader.fetch_all(sql).await?;
            let hosts: Vec<String> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
            let lapsed = select(&|sql| {
                sql.push(" AND state = 'live' AND host").in_texts(&hosts);
            });
            let lapsed = DomainRecord::read_all(&reader.fetch_all(lapsed).await?)?;
            domains.extend(lapsed.into_iter().filter(|domain| domain.state == DomainState::Failing));
            domains.sort_by(|one, other| (&one.host, &one.slug).cmp(&(&other.host, &other.slug)));
            domains.truncate(limit as usize);
        }
        Ok(domains)
    }
}

/// Adds a condition: the certificate of a domain has expired.
pub(super) fn push_has_lapsed(sql: &mut Sql) {
    sql.push("(host, slug) IN (SELECT c.host, c.slug FROM registry_certificates c WHERE c.chain IS NOT NULL AND ");
    // A subquery, which Postgres evaluates once and can look up in the index.
    sql.push("c.not_after <= (SELECT ").push_now_plus(Duration::ZERO).push("))");
}
