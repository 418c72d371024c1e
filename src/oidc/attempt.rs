//! A sign-in on its way: what a browser keeps in a cookie between leaving for the provider and coming back.
//!
//! Nothing of it is stored on a node or in a database, so it works on every node, and beginning a sign-in changes
//! nothing. The cookie has a random secret, the time and the page to come back to. `state`, `nonce` and the PKCE
//! verifier are HMACs of all of that with the secret as the key, and the provider in the text. So a response of the
//! provider fits only the browser that began, the page and the time that it began with, and the same provider: a changed
//! cookie has another `state`. A code works once, which the provider ensures.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use rand::RngExt;
use sha2::{Digest, Sha256};

use crate::config::OidcConfig;

/// How long a sign-in may take.
///
/// Larger: a stolen cookie can be completed for longer. Smaller: a person who needs time for a second factor has to begin
/// again.
pub const ATTEMPT_LIFETIME: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);

const SECRET_BYTES: usize = 32;
const TIME_BYTES: usize = 8;

/// The longest page to come back to, with its query. Larger: cookies that servers refuse. Smaller: one returns to the
/// overview instead of a filtered list.
pub(super) const MAX_PAGE: usize = 1000;

/// A sign-in on its way. Has no `Debug`, so that it gets into no log.
pub struct SignInAttempt {
    secret: [u8; SECRET_BYTES],
    /// In seconds since 1970.
    began: i64,
    page: String,
}

impl SignInAttempt {
    /// Begins one, which leads back to a page. A page that is too long is dropped.
    #[must_use]
    pub fn begin(page: &str, now: Timestamp) -> Self {
        let mut secret = [0; SECRET_BYTES];
        rand::rng().fill(&mut secret);
        let page = if page.len() <= MAX_PAGE { page.to_owned() } else { String::new() };
        Self { secret, began: now.as_second(), page }
    }

    /// Reads the value of a cookie.
    #[must_use]
    pub fn parse(cookie: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        let (secret, rest) = bytes.split_first_chunk::<SECRET_BYTES>()?;
        let (began, page) = rest.split_first_chunk::<TIME_BYTES>()?;
        let page = String::from_utf8(page.to_vec()).ok().filter(|page| page.len() <= MAX_PAGE)?;
        Some(Self { secret: *secret, began: i64::from_be_bytes(*began), page })
    }

    /// The value of a cookie.
    #[must_use]
    pub fn cookie(&self) -> String {
        URL_SAFE_NO_PAD.encode([&self.secret[..], &self.began.to_be_bytes(), self.page.as_bytes()].concat())
    }

    /// Which of a browser's attempts this is: 8 characters of Base64url.
    #[must_use]
    pub fn id(&self) -> String {
        URL_SAFE_NO_PAD.encode(&Sha256::digest(self.cookie())[..6])
    }

    /// When it began, in seconds since 1970. Whoever set the cookie chose it.
    #[must_use]
    pub fn began(&self) -> i64 {
        self.began
    }

    /// The page to come back to. Whoever set the cookie chose it.
    #[must_use]
    pub fn page(&self) -> &str {
        &self.page
    }

    /// Whether too much time has passed. A time in the future is no attempt of this gateway.
    pub(super) fn is_expired(&self, now: Timestamp, skew: i64) -> bool {
        let age = now.as_second().saturating_sub(self.began);
        age > ATTEMPT_LIFETIME.as_secs() || age < -skew
    }

    pub(super) fn state(&self, config: &OidcConfig) -> String {
        self.derive("state", config)
    }

    pub(super) fn nonce(&self, config: &OidcConfig) -> String {
        self.derive("nonce", config)
    }

    /// The PKCE verifier: 43 characters (RFC 7636, section 4.1).
    pub(super) fn verifier(&self, config: &OidcConfig) -> String {
        self.derive("verifier", config)
    }

    pub(super) fn challenge(&self, config: &OidcConfig) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(self.verifier(config)))
    }

    /// Whether this is the attempt's `state`. Takes as long whatever is sent.
    pub(super) fn has_state(&self, sent: &str, config: &OidcConfig) -> bool {
        let sent = URL_SAFE_NO_PAD.decode(sent).unwrap_or_default();
        self.mac("state", config).verify_slice(&sent).is_ok()
    }

    fn derive(&self, label: &str, config: &OidcConfig) -> String {
        URL_SAFE_NO_PAD.encode(self.mac(label, config).finalize().into_bytes())
    }

    fn mac(&self, label: &str, config: &OidcConfig) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("a key of any length will do");
        // Neither an issuer nor a client id contains a control character, so no two sets of parts have the same text.
        for part in [label, &config.issuer, &config.client_id] {
            mac.update(part.as_bytes());
            mac.update(&[0]);
        }
        mac.update(&self.began.to_be_bytes());
        mac.update(self.page.as_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oidc::id_token::tests::config;

    #[test]
    fn a_cookie_is_read_back_and_a_changed_one_has_another_state() {
        let (config, now) = (config(), Timestamp::now());
        let attempt = SignInAttempt::begin("/tokens?page=2", now);
        let read = SignInAttempt::parse(&attempt.cookie()).expect("a cookie");
        assert_eq!((read.page(), read.state(&config)), ("/tokens?page=2", attempt.state(&config)));
        assert!(read.has_state(&attempt.state(&config), &config) && !read.has_state(&attempt.nonce(&config), &config));
        assert!(!read.has_state("", &config) && !read.has_state("%%%", &config));
        assert_eq!(attempt.verifier(&config).len(), 43);
        let bytes = URL_SAFE_NO_PAD.decode(attempt.cookie()).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = SignInAttempt::parse(&URL_SAFE_NO_PAD.encode(changed));
            assert!(changed.is_none_or(|changed| !changed.has_state(&attempt.state(&config), &config)), "{at}");
        }
        let mut other = config.clone();
        other.issuer = "https://other.example".into();
        assert!(!attempt.has_state(&attempt.state(&config), &other));
        assert_eq!(SignInAttempt::begin(&"/".repeat(MAX_PAGE + 1), now).page(), "");
        for cookie in ["", "AAAA", "%"] {
            assert!(SignInAttempt::parse(cookie).is_none(), "{cookie}");
        }
    }

    #[test]
    fn an_attempt_lasts_ten_minutes() {
        let began = Timestamp::from_second(1_800_000_000).unwrap();
        let attempt = SignInAttempt::begin("", began);
        for (after, is_expired) in [(0, false), (600, false), (601, true), (-60, false), (-61, true)] {
            let now = began + jiff::SignedDuration::from_secs(after);
            assert_eq!(attempt.is_expired(now, 60), is_expired, "{after}");
        }
    }
}
