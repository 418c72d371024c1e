//! API tokens: their form, their digest, and protection against printing one by accident.
//!
//! A token is `fg_`, 40 random base62 characters (238 bits), and 6 base62 characters with the CRC-32 of what precedes
//! them. The checksum allows refusing a mistyped or invented token without a look-up, and lets secret scanners
//! recognize a leaked one. The digest is plain SHA-256: 238 random bits can't be guessed, so a slow hash would only
//! slow the gate. Tokens are looked up by digest, which needs no constant-time comparison: the duration of a look-up
//! reveals something about a digest, but nothing about the token behind it.

mod creating;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use jiff::Timestamp;

use rand::RngExt;
use sha2::{Digest, Sha256};

pub use self::creating::{
    CreateTokenError, Created, NewTokenRequest, Rotated, RotationRequest, create, is_valid_name, rotate,
};
use super::last_used;
use crate::store::{FormReach, TokenLimits, TokenRecord};

const PREFIX: &str = "fg_";
const RANDOM: usize = 40;
const CHECKSUM: usize = 6;
const LENGTH: usize = PREFIX.len() + RANDOM + CHECKSUM;

/// How much of a token lists show: enough to distinguish tokens, 5 of its 40 random characters.
const SHOWN: usize = PREFIX.len() + 5;

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A token as presented by a client: its form and checksum are valid, which says nothing about its owner.
#[derive(Clone)]
pub struct PresentedToken(String);

impl PresentedToken {
    /// Generates a token with a cryptographic random number generator that the operating system seeds.
    #[must_use]
    pub fn generate() -> Self {
        let mut random = rand::rng();
        let mut text = String::with_capacity(LENGTH);
        text.push_str(PREFIX);
        text.extend((0..RANDOM).map(|_| char::from(BASE62[random.random_range(0..BASE62.len())])));
        let sum = checksum(&text);
        text.extend(sum.map(char::from));
        Self(text)
    }

    /// Parses the value of an `Authorization` header: `Bearer <token>`, the scheme case-insensitive (RFC 9110,
    /// section 11.1). `None` for anything that can't be a formgate token.
    #[must_use]
    pub fn from_authorization(value: &[u8]) -> Option<Self> {
        let value = std::str::from_utf8(value).ok()?;
        let (scheme, token) = value.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("Bearer") {
            return None;
        }
        Self::parse(token.trim_matches(' '))
    }

    /// Parses a bare token.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // Checks all bytes without stopping at the first mismatch, so that the compiler can vectorize the loop.
        let base62 = |part: &str| part.bytes().fold(true, |all, byte| all & byte.is_ascii_alphanumeric());
        if text.len() != LENGTH || !text.strip_prefix(PREFIX).is_some_and(base62) {
            return None;
        }
        let (body, sum) = text.split_at(LENGTH - CHECKSUM);
        (checksum(body) == sum.as_bytes()).then(|| Self(text.to_owned()))
    }

    /// The digest, for storing and comparing.
    #[must_use]
    pub fn digest(&self) -> TokenDigest {
        TokenDigest(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The first characters, for lists.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.0[..SHOWN]
    }

    /// The token itself. Only `token create` and `demo` print it, once.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PresentedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PresentedToken({}…)", self.shown())
    }
}

/// What was sent as a token, and refused: as much of it as lists show, and the digest of one whose form is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SentToken {
    shown: [u8; SHOWN],
    digest: Option<[u8; 32]>,
}

impl SentToken {
    /// Reads the value of an `Authorization` header. `None` if what was sent does not begin like a token of formgate: it may be
    /// a secret of another service, of which nothing may be shown.
    #[must_use]
    pub fn from_authorization(value: &[u8]) -> Option<Self> {
        let digest = PresentedToken::from_authorization(value).map(|presented| *presented.digest().as_bytes());
        let token = value.trim_ascii().rsplit(|byte| *byte == b' ').next()?;
        let shown: &[u8; SHOWN] = token.first_chunk()?;
        let is_like_one = shown.strip_prefix(PREFIX.as_bytes())?.iter().all(u8::is_ascii_alphanumeric);
        is_like_one.then_some(Self { shown: *shown, digest })
    }

    /// The first characters, for lists.
    #[must_use]
    pub fn shown(&self) -> &str {
        std::str::from_utf8(&self.shown).expect("it is ASCII")
    }

    /// SHA-256 of the token, if its form is valid.
    #[must_use]
    pub fn digest(&self) -> Option<&[u8; 32]> {
        self.digest.as_ref()
    }
}

/// SHA-256 of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenDigest([u8; 32]);

impl From<[u8; 32]> for TokenDigest {
    fn from(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl TokenDigest {
    /// The bytes, as the store keeps them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

fn checksum(body: &str) -> [u8; CHECKSUM] {
    let mut rest = crc32fast::hash(body.as_bytes()) as usize;
    let mut digits = [b'0'; CHECKSUM];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[rest % BASE62.len()];
        rest /= BASE62.len();
    }
    digits
}

/// A verified token.
#[derive(Debug)]
pub struct Token {
    /// Its number in the tenant's database.
    pub id: i64,
    /// Its name, chosen by the administrator.
    pub name: Arc<str>,
    /// What it is limited to.
    pub limits: TokenLimits,
    /// From this instant on it is refused.
    pub(super) expires_at: Option<Timestamp>,
    /// When it was last used by what is stored, in whole minutes since 1970, if it was used.
    pub(super) stored_use: Option<i64>,
    /// The last minute in which its use was recorded, so that [`super::LastUsed`] is called once a minute.
    pub(super) noted: AtomicI64,
}

impl Token {
    pub(super) fn new(record: &TokenRecord) -> Self {
        let stored_use = record.last_used_at.map(last_used::minute_of);
        Self {
            id: record.id,
            name: record.name.as_str().into(),
            limits: record.limits.clone(),
            expires_at: record.expires_at,
            stored_use,
            noted: AtomicI64::new(i64::MIN),
        }
    }

    /// What it reaches.
    #[must_use]
    pub fn reach(&self) -> &FormReach {
        &self.limits.forms
    }

    /// Whether it has expired.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_token_has_the_documented_shape_and_is_read_back() {
        let token = PresentedToken::generate();
        assert_eq!(token.expose().len(), 49);
        let header = format!("bEaReR {}", token.expose());
        let read = PresentedToken::from_authorization(header.as_bytes()).expect("a token");
        assert_eq!(read.digest(), token.digest());
        assert_ne!(PresentedToken::generate().digest(), token.digest());
    }

    #[test]
    fn every_single_mistyped_character_is_noticed() {
        let token = PresentedToken::generate();
        for at in 0..LENGTH {
            let mut text = token.expose().to_owned().into_bytes();
            text[at] = if text[at] == b'x' { b'y' } else { b'x' };
            assert!(PresentedToken::parse(std::str::from_utf8(&text).unwrap()).is_none(), "position {at}");
        }
    }

    #[test]
    fn anything_but_a_bearer_token_is_none() {
        let token = PresentedToken::generate();
        let token = token.expose();
        for value in [
            String::new(),
            token.to_owned(),
            format!("Basic {token}"),
            format!("Bearer{token}"),
            format!("Bearer {token}x"),
            "Bearer fg_ä".to_owned(),
        ] {
            assert!(PresentedToken::from_authorization(value.as_bytes()).is_none(), "{value}");
        }
        assert!(PresentedToken::from_authorization(b"Bearer \xff").is_none());
    }

    #[test]
    fn of_what_was_sent_only_the_beginning_of_a_token_is_shown() {
        let token = PresentedToken::generate();
        let shown = |value: &str| SentToken::from_authorization(value.as_bytes()).map(|sent| sent.shown().to_owned());
        let mistyped = format!("{}x", &token.expose()[..LENGTH - 1]);
        for value in [format!("Bearer {}", token.expose()), format!("Bearer {mistyped}"), token.expose().to_owned()] {
            assert_eq!(shown(&value).as_deref(), Some(token.shown()), "{value}");
        }
        for value in [
            "",
            "Bearer sk_live_0123456789",
            "Basic dXNlcjpwYXNzd29yZA==",
            "Bearer fg_ab",
            "Bearer fg_a-bcdef",
            "fg_äöüäöü",
        ] {
            assert_eq!(shown(value), None, "{value}");
        }
        let sent = SentToken::from_authorization(format!("Bearer {}", token.expose()).as_bytes()).unwrap();
        assert_eq!(sent.digest(), Some(token.digest().as_bytes()));
        assert_eq!(SentToken::from_authorization(mistyped.as_bytes()).unwrap().digest(), None);
    }

    #[test]
    fn debug_shows_no_more_than_a_list_does() {
        let token = PresentedToken::generate();
        assert!(!format!("{token:?}").contains(&token.expose()[SHOWN..]));
    }
}
