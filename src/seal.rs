//! Seals secrets at rest with AES-256-GCM, so that a copy of a database has none of them.
//!
//! Owns the sealed form, `sealed1.KEY.TEXT`: the id of the key, then the nonce and the encrypted secret as Base64. A
//! context (the URL that a secret is for) is authenticated with it, so a sealed secret is of no use elsewhere. A text
//! without the prefix is a secret that was stored before there was a key, and stays readable. The key comes from the
//! configuration, never from a database. Of aws-lc-rs, which TLS uses anyway, so that there is one implementation.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use secrecy::zeroize::Zeroizing;
use sha2::{Digest, Sha256};

/// The beginning of a sealed text. Another form has another number.
pub const PREFIX: &str = "sealed1.";

/// The length of the id of a key, in Base64.
const ID_LENGTH: usize = 8;

/// How many bytes at the beginning of a sealed text name its key.
pub const BEGINNING: usize = PREFIX.len() + ID_LENGTH + 1;

/// The length of a key.
const KEY_BYTES: usize = 32;

/// The length of a nonce.
const NONCE_BYTES: usize = 12;

/// The keys that seal and open; without any, secrets are stored as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seals {
    /// Seals, and opens.
    current: Option<SealKey>,
    /// Only open: what was sealed before the key was changed.
    previous: Vec<SealKey>,
}

/// A key of 32 bytes. Its text is never shown.
#[derive(Clone)]
pub struct SealKey {
    bytes: Zeroizing<[u8; KEY_BYTES]>,
    id: String,
}

/// The text is not the Base64 of 32 bytes. Does not quote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the Base64 of 32 bytes")]
pub struct InvalidSealKey;

/// Why a sealed secret can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// No key has the id that it was sealed with.
    #[error("the secret is sealed with a key that is not configured")]
    UnknownKey,
    /// It was changed, cut off, or moved to another context.
    #[error("the sealed secret is damaged")]
    Damaged,
}

impl SealKey {
    /// Reads a key.
    ///
    /// # Errors
    /// [`InvalidSealKey`].
    pub fn parse(text: &str) -> Result<Self, InvalidSealKey> {
        let decoded = Zeroizing::new(STANDARD.decode(text.trim()).map_err(|_| InvalidSealKey)?);
        let bytes: [u8; KEY_BYTES] = decoded.as_slice().try_into().map_err(|_| InvalidSealKey)?;
        let digest = Sha256::new().chain_update("formgate seal key").chain_update(bytes).finalize();
        Ok(Self { bytes: Zeroizing::new(bytes), id: URL_SAFE_NO_PAD.encode(&digest[..6]) })
    }

    /// The beginning of what it sealed.
    fn prefix(&self) -> String {
        format!("{PREFIX}{}.", self.id)
    }

    fn cipher(&self) -> RandomizedNonceKey {
        RandomizedNonceKey::new(&AES_256_GCM, &*self.bytes).expect("the key is as long as the cipher's")
    }
}

impl PartialEq for SealKey {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for SealKey {}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealKey({})", self.id)
    }
}

impl Seals {
    /// A key that seals, and keys that only open.
    #[must_use]
    pub fn new(current: Option<SealKey>, previous: impl IntoIterator<Item = SealKey>) -> Self {
        Self { current, previous: previous.into_iter().collect() }
    }

    fn keys(&self) -> impl Iterator<Item = &SealKey> {
        self.current.iter().chain(&self.previous)
    }

    /// Whether a stored secret is sealed with the key that seals now.
    #[must_use]
    pub fn is_current(&self, stored: &str) -> bool {
        self.current.as_ref().is_none_or(|key| stored.starts_with(&key.prefix()))
    }

    /// Seals a secret for a context, or returns it if there is no key.
    #[must_use]
    pub fn seal(&self, secret: &str, context: &str) -> String {
        let Some(key) = &self.current else { return secret.to_owned() };
        let mut text = secret.as_bytes().to_vec();
        let nonce = key.cipher().seal_in_place_append_tag(Aad::from(context), &mut text);
        let nonce = nonce.expect("the secret is short, and the system has random bytes");
        let sealed = [nonce.as_ref().as_slice(), &text].concat();
        format!("{}{}", key.prefix(), URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens a stored secret of a context; one that is not sealed is returned.
    ///
    /// # Errors
    /// [`Unopened`].
    pub fn open(&self, stored: &str, context: &str) -> Result<String, Unopened> {
        let Some(sealed) = stored.strip_prefix(PREFIX) else { return Ok(stored.to_owned()) };
        let (id, sealed) = sealed.split_once('.').ok_or(Unopened::Damaged)?;
        let key = self.keys().find(|key| key.id == id);
        let key = key.ok_or(Unopened::UnknownKey)?;
        let sealed = URL_SAFE_NO_PAD.decode(sealed).map_err(|_| Unopened::Damaged)?;
        let (nonce, text) = sealed.split_at_checked(NONCE_BYTES).ok_or(Unopened::Damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Unopened::Damaged)?;
        let mut text = text.to_vec();
        let opened = key.cipher().open_in_place(nonce, Aad::from(context), &mut text);
        String::from_utf8(opened.map_err(|_| Unopened::Damaged)?.to_vec()).map_err(|_| Unopened::Damaged)
    }

    /// The id of each key, that of the key that seals first. An id is the beginning of a digest, so it says nothing of
    /// its key; it is in everything that the key sealed.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys().map(|key| &*key.id)
    }

    /// The id of the key that a stored secret is sealed with, if it is none of these.
    #[must_use]
    pub fn missing_key<'s>(&self, stored: &'s str) -> Option<&'s str> {
        let (id, _) = stored.strip_prefix(PREFIX)?.split_once('.')?;
        self.keys().all(|key| key.id != id).then_some(id)
    }

    /// The beginning of what a configured key sealed, for each key.
    pub fn prefixes(&self) -> impl Iterator<Item = String> {
        self.keys().map(SealKey::prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const URL: &str = "https://hooks.test/in";

    fn key(byte: u8) -> SealKey {
        SealKey::parse(&STANDARD.encode([byte; KEY_BYTES])).unwrap()
    }

    fn seals(current: u8, previous: Option<u8>) -> Seals {
        Seals::new(Some(key(current)), previous.map(key))
    }

    #[test]
    fn a_sealed_secret_opens_with_its_key_until_that_is_no_longer_the_previous_one() {
        let sealed = seals(1, None).seal(SECRET, URL);
        assert!(sealed.starts_with(PREFIX) && !sealed.contains(SECRET), "{sealed}");
        assert!(seals(1, None).prefixes().all(|prefix| prefix.len() == BEGINNING));
        assert!(seals(1, None).prefixes().all(|prefix| sealed.starts_with(&prefix)));
        assert_ne!(sealed, seals(1, None).seal(SECRET, URL), "each has a nonce of its own");
        assert_eq!(seals(1, None).open(&sealed, URL).as_deref(), Ok(SECRET));
        assert_eq!(seals(2, Some(1)).open(&sealed, URL).as_deref(), Ok(SECRET));
        assert_eq!(seals(2, None).open(&sealed, URL), Err(Unopened::UnknownKey));
        assert_eq!(seals(2, None).missing_key(&sealed), seals(1, None).ids().next());
        assert_eq!(seals(2, Some(1)).missing_key(&sealed), None);
        assert_eq!(Seals::default().missing_key(SECRET), None, "it is not sealed");
        assert_eq!(Seals::default().open(&sealed, URL), Err(Unopened::UnknownKey));
    }

    #[test]
    fn a_secret_that_is_not_sealed_stays_readable() {
        assert_eq!(Seals::default().seal(SECRET, URL), SECRET);
        assert_eq!(Seals::default().open(SECRET, URL).as_deref(), Ok(SECRET));
        assert_eq!(seals(1, None).open(SECRET, URL).as_deref(), Ok(SECRET));
    }

    #[test]
    fn a_sealed_secret_that_was_changed_cut_or_moved_does_not_open() {
        let sealed = seals(1, None).seal(SECRET, URL);
        assert_eq!(seals(1, None).open(&sealed, "https://other.test/in"), Err(Unopened::Damaged));
        for length in 0..sealed.len() - PREFIX.len() {
            assert!(seals(1, None).open(&sealed[..PREFIX.len() + length], URL).is_err());
        }
        let body = sealed.rfind('.').unwrap() + 1;
        for at in body..sealed.len() {
            let other = if &sealed[at..=at] == "A" { "B" } else { "A" };
            let changed = format!("{}{other}{}", &sealed[..at], &sealed[at + 1..]);
            assert_eq!(seals(1, None).open(&changed, URL), Err(Unopened::Damaged), "{at}");
        }
    }

    #[test]
    fn a_key_is_32_bytes_and_its_text_is_never_shown() {
        for text in ["", "secret", &STANDARD.encode([7; 31]), &STANDARD.encode([7; 33])] {
            assert_eq!(SealKey::parse(text).unwrap_err(), InvalidSealKey);
        }
        let text = STANDARD.encode([7; 32]);
        assert!(!format!("{:?}", SealKey::parse(&text)).contains(&text[..6]));
    }
}
