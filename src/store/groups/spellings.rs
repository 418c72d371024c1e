//! Finds the users of mailboxes that have several spellings, before members are compared with users by folded address.
//!
//! The statements that write members compare one folded form of each address. Here the key of a mailbox is replaced by
//! the folded form under which its user is stored, by whichever program, or by that of the address if there is no user
//! yet. Members whose address has one spelling, which are nearly all, need no lookup.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::change::NewMembers;
use crate::store::TextList;
use crate::store::engine::PooledConnection;
use crate::store::mailbox::{key, spellings};
use crate::store::statement::{fold, sql};

/// How many mailboxes one statement looks up.
///
/// Larger: the spellings of a long list, several times its length, are in memory at once. Smaller: a long list takes
/// more statements.
const MAILBOXES_PER_STATEMENT: usize = 5_000;

/// The members with the folded forms under which their users are stored, and whether each mailbox with several
/// spellings has a user.
pub(super) async fn find_spellings<'m>(
    members: &'m NewMembers,
    connection: &mut PooledConnection,
) -> Result<(Cow<'m, NewMembers>, bool), sqlx::Error> {
    if members.ambiguous.is_empty() {
        return Ok((Cow::Borrowed(members), true));
    }
    let mut folded: Vec<Cow<'_, str>> = members.folded.iter().map(Cow::Borrowed).collect();
    let emails: Vec<&str> = members.emails.iter().collect();
    let mut all_exist = true;
    for positions in members.ambiguous.chunks(MAILBOXES_PER_STATEMENT) {
        // A generic plan from a time with few users would read all of them.
        let sql = sql!(
            "SELECT email_folded FROM users WHERE email_folded {in spellings}",
            spellings = positions.iter().flat_map(|&position| spellings(&folded[position])).collect::<TextList>(),
        )
        .with_custom_plan();
        let mut stored: HashMap<String, Vec<String>> = HashMap::new();
        for row in connection.fetch_all(sql).await? {
            let spelling: String = row.get(0)?;
            stored.entry(key(&spelling).into_owned()).or_default().push(spelling);
        }
        for &position in positions {
            let as_sent = fold(emails[position]);
            let found = stored.remove(&*folded[position]).unwrap_or_default();
            all_exist &= !found.is_empty();
            // Another program may have created two users for one mailbox. The one with the same spelling is used then.
            let found = if found.contains(&as_sent) { None } else { found.into_iter().min() };
            folded[position] = Cow::Owned(found.unwrap_or(as_sent));
        }
    }
    let folded = Arc::new(folded.iter().collect::<TextList>());
    Ok((Cow::Owned(NewMembers { folded, ..members.clone() }), all_exist))
}
