//! One-time links into the administration area: their rules, and their values.
//!
//! The command line and the operator API both create them here. Only the digest of a link's secret is stored.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::shown_text::{MAX_NAME, NAME_RULE, is_shown_as_it_is, is_valid_name};
use crate::store::{Actor, AdminLink, Store, StoreError};

/// The longest time that a link is valid: a week.
///
/// Larger: a link in an old message still signs in. Smaller: an invitation before a weekend expires
/// unread.
pub const MAX_VALID: Duration = Duration::from_hours(7 * 24);

/// How long a link is valid by default.
///
/// Larger: a link in a message that was forwarded still signs in. Smaller: it expires before the message is read.
pub const DEFAULT_VALID: Duration = Duration::from_hours(1);

/// Reads the e-mail address of an administrator.
///
/// # Errors
/// A sentence for whoever wrote it.
pub fn email(text: &str) -> Result<String, String> {
    let is_plain = !text.contains(char::is_whitespace) && is_shown_as_it_is(text);
    let has_parts = text.rsplit_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
    let is_email = is_plain && has_parts && text.chars().count() <= MAX_NAME;
    if is_email { Ok(text.to_owned()) } else { Err("it is not an e-mail address".to_owned()) }
}

/// Reads the name of an administrator.
///
/// # Errors
/// A sentence for whoever wrote it.
pub fn name(text: &str) -> Result<String, String> {
    if is_valid_name(text) { Ok(text.to_owned()) } else { Err(NAME_RULE.to_owned()) }
}

/// Stores a link into the area at a URL, and returns its own URL.
///
/// # Errors
/// [`StoreError`]; then there is no link.
pub async fn create(
    store: &Store,
    area: &str,
    link: &AdminLink,
    now: Timestamp,
    by: &Actor,
) -> Result<String, StoreError> {
    let secret = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let digest = Sha256::digest(secret.as_bytes()).into();
    store.create_admin_link(&digest, link, now, by).await?;
    Ok(format!("{area}/enter/{secret}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_email_address_has_two_parts_and_no_blanks() {
        for (text, is_email) in [
            ("ana@acme.example", true),
            ("ana@", false),
            ("@acme.example", false),
            ("ana", false),
            ("ana @acme.example", false),
            ("ana@acme.example\n", false),
            ("ana\u{202E}@acme.example", false),
            ("ana\u{200B}@acme.example", false),
            ("ána@ácme.example", true),
            ("ana\u{E000}@acme.example", false),
            ("ana@acme.example\u{FFFE}", false),
            (&format!("ana{}@acme.example", "\u{301}".repeat(200)), false),
            (&format!("{}@a.example", "x".repeat(250)), false),
        ] {
            assert_eq!(email(text).is_ok(), is_email, "{text}");
        }
    }
}
