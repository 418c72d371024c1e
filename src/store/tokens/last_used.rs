//! When and how tokens were last used.

use jiff::Timestamp;

use crate::store::statement::{Sql, sql};

/// The last use of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// The token.
    pub id: i64,
    /// When, to the minute.
    pub at: Timestamp,
    /// The route of the request, as metrics name it.
    pub route: &'static str,
    /// The network of the caller, if it is known: an IPv4 /24 or an IPv6 /48.
    pub network: Option<String>,
}

/// Records uses. One that is older than the stored one changes nothing.
pub(super) fn touch(used: &[TokenUse]) -> Sql {
    let rows = used.iter().map(|used| (used.id, used.at.as_microsecond(), used.route, &used.network));
    let rows = serde_json::to_string(&rows.collect::<Vec<_>>()).expect("numbers and texts are JSON");
    sql!(
        "UPDATE tokens SET last_used_at = {pg: to_timestamp(used.at / 1e6) | lite: used.at},
           last_used_route = used.route, last_used_network = used.network
         FROM {rows rows: id bigint, at bigint, route text, network text} AS used
         WHERE tokens.id = used.id
           AND (last_used_at IS NULL OR last_used_at < {pg: to_timestamp(used.at / 1e6) | lite: used.at})",
        rows
    )
}
