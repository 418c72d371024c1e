//! The cookie of a session: 256 random bits, of which only the digest is stored.
//!
//! The prefix `__Host-` makes browsers refuse a cookie of this name that was set without TLS, by another host, or for
//! a part of the site.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use http::header::{COOKIE, HeaderValue};
use rand::RngExt;
use sha2::{Digest, Sha256};

use super::protection::hex;

const NAME: &str = "__Host-formgate";

const ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Lax";

/// Bytes of a cookie.
const BYTES: usize = 32;

/// What form tokens are computed of, next to the cookie: it makes sure that nothing else is.
const FORM_LABEL: &[u8] = b"formgate form";

/// The secret in a cookie. Has no `Debug`, so that it gets into no log.
pub(super) struct SessionSecret([u8; BYTES]);

impl SessionSecret {
    pub(super) fn generate() -> Self {
        let mut bytes = [0; BYTES];
        rand::rng().fill(&mut bytes);
        Self(bytes)
    }

    /// The secret that a request presents, if it has the form of one.
    pub(super) fn presented(headers: &HeaderMap) -> Option<Self> {
        // HTTP/2 clients may send each cookie in a field of its own (RFC 9113, section 8.2.3).
        let fields = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies = fields.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = cookies.find(|(name, _)| *name == NAME)?;
        let bytes = URL_SAFE_NO_PAD.decode(value).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    /// The digest, for storing and comparing.
    pub(super) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0).into()
    }

    /// What each form of the session has to send back.
    pub(super) fn form_token(&self) -> String {
        hex(&self.form_mac().finalize().into_bytes())
    }

    /// Whether this is the session's form token. Takes as long whatever is sent.
    pub(super) fn accepts(&self, form_token: &str) -> bool {
        let sent: Option<Vec<u8>> = form_token
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        sent.is_some_and(|sent| self.form_mac().verify_slice(&sent).is_ok())
    }

    fn form_mac(&self) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        mac.update(FORM_LABEL);
        mac
    }

    /// `Set-Cookie` for a new session. It lasts as long as the browser is open; the server ends it.
    pub(super) fn set(&self) -> HeaderValue {
        let cookie = format!("{NAME}={}; {ATTRIBUTES}", URL_SAFE_NO_PAD.encode(self.0));
        let mut value = HeaderValue::try_from(cookie).expect("visible ASCII");
        value.set_sensitive(true);
        value
    }
}

/// `Set-Cookie` that removes the cookie.
pub(super) fn clear() -> HeaderValue {
    HeaderValue::try_from(format!("{NAME}=; Max-Age=0; {ATTRIBUTES}")).expect("visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (COOKIE, HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn a_cookie_that_was_set_is_read_back_among_others() {
        let secret = SessionSecret::generate();
        let set = secret.set().to_str().unwrap().to_owned();
        let (pair, attributes) = set.split_once("; ").unwrap();
        assert_eq!(attributes, "Path=/; Secure; HttpOnly; SameSite=Lax");
        assert_eq!(pair.len(), NAME.len() + 1 + 43, "256 bits");
        for values in [&[pair][..], &["a=b", pair], &[&*format!("a=b; {pair};c=d")]] {
            let read = SessionSecret::presented(&headers(values)).expect("a cookie");
            assert_eq!(read.digest(), secret.digest());
        }
        for values in [&[][..], &["a=b"], &["__Host-formgate="], &["__Host-formgate=abc"], &[&*pair.to_lowercase()]] {
            let read = SessionSecret::presented(&headers(values));
            assert!(read.is_none_or(|read| read.digest() != secret.digest()), "{values:?}");
        }
    }

    #[test]
    fn a_form_token_is_that_of_its_session_only() {
        let (own, other) = (SessionSecret::generate(), SessionSecret::generate());
        assert!(own.accepts(&own.form_token()) && !own.accepts(&other.form_token()));
        for wrong in ["", "0", "zz", "ä", &own.form_token()[1..], &format!("{}00", own.form_token())] {
            assert!(!own.accepts(wrong), "{wrong}");
        }
    }
}
