//! Lists domains, by their states as they are shown: those whose certificates have expired among those that fail.

use super::Registry;
use super::domains::{DomainRecord, DomainState};
use crate::store::StoreError;
use crate::store::statement::{Sql, sql};

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
        let select = |in_state: Sql| {
            let of_tenant = filter.slug.map(|slug| sql!("slug = {slug}", slug));
            sql!(
                "SELECT {+columns} FROM registry_domains
                 WHERE (host, slug) > ({after_host}, {after_slug}) AND {+conditions}
                 ORDER BY host, slug LIMIT {limit}",
                columns = DomainRecord::columns(),
                after_host = filter.after.0,
                after_slug = filter.after.1,
                conditions = Sql::joined(of_tenant.into_iter().chain([in_state]), " AND "),
                limit,
            )
        };
        let stored = select(match filter.state {
            Some(DomainState::Live) => sql!("state = 'live' AND NOT {+has_lapsed}", has_lapsed = has_lapsed()),
            Some(state) => sql!("state = {state}", state = state.as_str()),
            None => Sql::text("state <> 'removed'"),
        });
        let mut domains = DomainRecord::read_all(&reader.fetch_all(stored).await?)?;
        if filter.state == Some(DomainState::Failing) {
            // Few, since a node soon stores that they fail, and the last ones whose certificates have expired. Found in a
            // statement of its own: joined with these, Postgres goes through all domains.
            let sql = sql!(
                "SELECT host FROM registry_certificates
                 WHERE chain IS NOT NULL AND not_after <= (SELECT {clock})
                 ORDER BY not_after DESC LIMIT {most}",
                most = MAX_LAPSED,
            );
            let rows = reader.fetch_all(sql).await?;
            let hosts: Vec<String> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
            let lapsed = select(sql!("state = 'live' AND host {in hosts}", hosts = &hosts[..]));
            let lapsed = DomainRecord::read_all(&reader.fetch_all(lapsed).await?)?;
            domains.extend(lapsed.into_iter().filter(|domain| domain.state == DomainState::Failing));
            domains.sort_by(|one, other| (&one.host, &one.slug).cmp(&(&other.host, &other.slug)));
            domains.truncate(limit as usize);
        }
        Ok(domains)
    }
}

/// The certificate of a domain has expired. The clock is a subquery, which Postgres evaluates once and can look up in the
/// index.
pub(super) fn has_lapsed() -> Sql {
    sql!(
        "(host, slug) IN (
           SELECT c.host, c.slug FROM registry_certificates c
           WHERE c.chain IS NOT NULL AND c.not_after <= (SELECT {clock}))"
    )
}
