//! E-mail addresses: validation, and which of them name the same mailbox.
//!
//! A user's address is unique by its folded form, the column `users.email_folded`, which the database maintains for
//! every writer. That does not detect that `a@bücher.example` and `a@xn--bcher-kva.example` are one mailbox, or that
//! `é` can be one code point or two. The `key` of an address is the same for all its spellings; `spellings` lists the
//! folded forms under which a user with that key can be stored.
//!
//! Invariants: addresses with the same folded form have the same key, and [`Address::stored`] folds to one of the
//! spellings of [`Address::key`], so that every other spelling finds it. A plain ASCII address has no other spelling
//! and costs no more than a lower-case comparison.

use std::borrow::Cow;

use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};

use super::statement::{fold, folded};
use crate::shown_text::is_invisible;

/// The most characters of an address: 64 before the @ and 255 after it (RFC 5321, section 4.5.3.1). Larger: the column
/// `users.email` refuses the row. Smaller: addresses that mail servers accept are refused.
const MAX_ADDRESS: usize = 320;

/// The most characters of a domain's label (RFC 1035, section 2.3.4). Larger: punycode, whose cost grows with the
/// square of the length, is computed for labels that no resolver takes.
const MAX_LABEL: usize = 63;

/// A label that begins with this is in punycode (RFC 5890, section 2.3.2.1).
const A_LABEL: &[u8] = b"xn--";

/// An address that can be stored and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// As sent, unless other spellings would not find it then.
    pub stored: Cow<'a, str>,
    /// The key for comparisons.
    pub key: Cow<'a, str>,
    /// Whether its mailbox has more than one spelling.
    pub has_spellings: bool,
}

/// Why a text is not an address. Each message continues after the name of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    /// Not a local part, an `@` and a domain.
    #[error("must be a valid email address")]
    Malformed,
    /// A `mailto:` link.
    #[error("must be an email address without mailto:")]
    Link,
    /// It contains an invisible character, as after copying from a chat or a spreadsheet.
    #[error("must not contain the invisible character U+{:04X}", u32::from(*.0))]
    Invisible(char),
    /// An internationalized domain, or one with an A-label, that is invalid.
    #[error("must have a domain that is a valid internationalized domain name")]
    InvalidDomain,
}

impl<'a> Address<'a> {
    /// Parses an address as a client sends it.
    ///
    /// # Errors
    /// [`InvalidAddress`]. Whether the mailbox exists is not checked.
    pub fn parse(text: &'a str) -> Result<Self, InvalidAddress> {
        check_visible(text)?;
        let domain = domain_of(text).ok_or(InvalidAddress::Malformed)?;
        if text.is_ascii() && !has_a_label(domain) {
            return Ok(Self { stored: Cow::Borrowed(text), key: folded(text), has_spellings: false });
        }
        let folded = fold(text);
        let mailbox = Mailbox::of(&folded).ok_or(InvalidAddress::InvalidDomain)?;
        let stored = if mailbox.spellings().contains(&folded) {
            Cow::Borrowed(text)
        } else {
            let local = text.rsplit_once('@').map_or(text, |(local, _)| local);
            Cow::Owned(format!("{}@{}", nfc(local), mailbox.unicode))
        };
        // Mapping a domain can make it longer, and composing characters can produce a delimiter.
        domain_of(&stored).ok_or(InvalidAddress::Malformed)?;
        Ok(Self { stored, key: Cow::Owned(mailbox.key()), has_spellings: true })
    }
}

/// Refuses a link, and invisible characters, with which an address looks like another one.
pub(super) fn check_visible(text: &str) -> Result<(), InvalidAddress> {
    const LINK: &[u8] = b"mailto:";
    if text.as_bytes().get(..LINK.len()).is_some_and(|start| start.eq_ignore_ascii_case(LINK)) {
        return Err(InvalidAddress::Link);
    }
    if text.is_ascii() {
        return Ok(());
    }
    match text.chars().find(|&character| is_invisible(character)) {
        Some(character) => Err(InvalidAddress::Invisible(character)),
        None => Ok(()),
    }
}

/// The domain of a text that consists of a local part, an `@` and a domain without empty labels.
fn domain_of(text: &str) -> Option<&str> {
    let short = text.len() <= MAX_ADDRESS || text.chars().count() <= MAX_ADDRESS;
    let visible = text.is_ascii() || !text.chars().any(|c| c.is_whitespace() || c.is_control());
    // One pass, because a group has thousands of addresses. `label` is where the domain's last label begins.
    let (mut domain, mut label) = (None, 0);
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            b'@' if domain.is_none() && position > 0 => (domain, label) = (Some(position + 1), position + 1),
            b'.' if domain.is_some() && position > label => label = position + 1,
            b'.' if domain.is_none() => {}
            b'@' | b'.' | b',' | b';' | b'<' | b'>' | 0..=b' ' | 0x7f => return None,
            _ => {}
        }
    }
    domain.filter(|_| short && visible && label < text.len()).map(|domain| &text[domain..])
}

/// Whether the lower-case form of an address or a key is its only spelling.
fn is_plain(address: &str) -> bool {
    address.is_ascii() && address.rsplit_once('@').is_none_or(|(_, domain)| !has_a_label(domain))
}

fn has_a_label(domain: &str) -> bool {
    let is_one = |label: &[u8]| label.get(..A_LABEL.len()).is_some_and(|start| start.eq_ignore_ascii_case(A_LABEL));
    domain.as_bytes().split(|byte| *byte == b'.').any(is_one)
}

/// The key of an address, the same for all spellings of a mailbox. For an address with an invalid domain, which
/// another program may have stored, it is the folded form.
pub(crate) fn key(address: &str) -> Cow<'_, str> {
    if is_plain(address) {
        return folded(address);
    }
    let folded = fold(address);
    Cow::Owned(Mailbox::of(&folded).map_or(folded, |mailbox| mailbox.key()))
}

/// Whether a user with this key can be stored under other spellings than the key.
pub(crate) fn has_spellings(key: &str) -> bool {
    !is_plain(key)
}

/// The folded forms under which a user with a key can be stored: the domain as A-labels, as U-labels and decomposed;
/// the local part composed and decomposed.
pub(super) fn spellings(key: &str) -> Vec<String> {
    let mailbox = if is_plain(key) { None } else { Mailbox::of(key) };
    mailbox.map_or_else(|| vec![key.to_owned()], |mailbox| mailbox.spellings())
}

/// A mailbox that has more than one spelling.
struct Mailbox {
    /// The local part, folded and composed.
    local: String,
    /// The domain in A-labels.
    ascii: String,
    /// The domain in U-labels, folded.
    unicode: String,
}

impl Mailbox {
    /// The mailbox of a folded address. None if its domain is invalid.
    fn of(folded: &str) -> Option<Self> {
        let (local, domain) = folded.rsplit_once('@')?;
        let (ascii, unicode) = labels(domain)?;
        // Folding can decompose characters, so compose again: the result is then stable.
        Some(Self { local: nfc(&fold(&nfc(local))), ascii, unicode })
    }

    fn key(&self) -> String {
        format!("{}@{}", self.local, self.ascii)
    }

    fn spellings(&self) -> Vec<String> {
        let mut spellings = Vec::with_capacity(6);
        for local in [&self.local, &nfd(&self.local)] {
            for domain in [&self.ascii, &self.unicode, &nfd(&self.unicode)] {
                let spelling = format!("{local}@{domain}");
                if !spellings.contains(&spelling) {
                    spellings.push(spelling);
                }
            }
        }
        spellings
    }
}

/// A folded domain as A-labels, and as folded U-labels.
fn labels(domain: &str) -> Option<(String, String)> {
    if domain.is_ascii() && !has_a_label(domain) {
        return Some((domain.to_owned(), domain.to_owned()));
    }
    if domain.split('.').any(|label| label.chars().count() > MAX_LABEL) {
        return None;
    }
    let to_ascii = |domain: &str| {
        let ascii =
            Uts46::new().to_ascii(domain.as_bytes(), AsciiDenyList::STD3, Hyphens::Allow, DnsLength::Verify).ok()?;
        Some(ascii.into_owned())
    };
    let ascii = to_ascii(domain)?;
    let (unicode, sound) = Uts46::new().to_unicode(ascii.as_bytes(), AsciiDenyList::STD3, Hyphens::Allow);
    sound.ok()?;
    let folded = fold(&unicode);
    // If letters that differ in domains fold to the same one, the database can't distinguish them either.
    let ascii = if folded == unicode { ascii } else { to_ascii(&folded)? };
    Some((ascii, folded))
}

fn nfc(text: &str) -> String {
    ComposingNormalizerBorrowed::new_nfc().normalize(text).into_owned()
}

fn nfd(text: &str) -> String {
    DecomposingNormalizerBorrowed::new_nfd().normalize(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_at_sign_and_a_domain() {
        for text in [
            "ana@example.com",
            "a.b+c@sub.example.com",
            "ünï@bücher.example",
            "root@localhost",
            "a@foo_bar.example",
            "a@xn--bcher-kva.example",
            "a@☕.example",
            "xn--@example.com",
            "ünï@foo_bar.example",
        ] {
            let address = Address::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(address.stored, text);
        }
        let long = format!("{}@example.com", "x".repeat(320));
        for text in [
            "",
            "ana",
            "@example.com",
            "ana@",
            "a b@example.com",
            "ana@ex..com",
            "a@b@c",
            "a@.com",
            "a,b@c.de",
            "a@c.de,",
            "a@c.de.",
            "a;b@c.de",
            "a@c.de>",
            "a@c\t.de",
            "a\u{a0}b@c.de",
            "a\u{7f}b@c.de",
            "a\u{3000}b@ü.de",
            long.as_str(),
        ] {
            assert_eq!(Address::parse(text), Err(InvalidAddress::Malformed), "{text}");
        }
    }

    #[test]
    fn links_invisible_characters_and_invalid_domains_are_refused_with_their_reason() {
        for text in ["mailto:ana@example.com", "MailTo:ana@bücher.example"] {
            assert_eq!(Address::parse(text), Err(InvalidAddress::Link), "{text}");
        }
        let invisible = "\u{ad}\u{34f}\u{61c}\u{115f}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{202a}\u{202e}\u{2060}\
            \u{2066}\u{2069}\u{2800}\u{3164}\u{fe0f}\u{feff}\u{fff9}\u{e0001}\u{e007f}";
        for character in invisible.chars() {
            for text in [format!("{character}ana@x.de"), format!("a{character}na@x.de"), format!("ana@x.de{character}")]
            {
                assert_eq!(Address::parse(&text), Err(InvalidAddress::Invisible(character)), "{text:?}");
            }
        }
        let long_label = format!("a@{}.example", "ü".repeat(64));
        let long_domain = format!("a@{}example", "bücher.".repeat(20));
        for text in [
            "a@xn--.example",
            "a@xn--a.example",
            "a@XN--ZZZZZZ.example",
            "a@xn--bcher-kva..example",
            "a@ü..example",
            "a@ü。。example",
            "a@ü＠.example",
            "a@ü,b",
            "a@ü_b.example",
            "a@\u{301}a.example",
            &long_label,
            &long_domain,
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        let said = Address::parse("ana\u{200b}@x.de").unwrap_err().to_string();
        assert_eq!(said, "must not contain the invisible character U+200B");
    }

    #[test]
    fn all_spellings_of_a_mailbox_have_one_key_and_find_what_is_stored() {
        for (key, all) in [
            (
                "ana@example.com",
                vec!["ana@example.com", "ANA@Example.COM", "ana@ｅｘａｍｐｌｅ。com", "ana@EXAMPLE．com"],
            ),
            (
                "a@xn--bcher-kva.example",
                vec![
                    "a@bücher.example",
                    "A@BÜCHER.example",
                    "a@bu\u{308}cher.example",
                    "a@BU\u{308}CHER.EXAMPLE",
                    "a@xn--bcher-kva.example",
                    "A@XN--BCHER-KVA.Example",
                    "a@bücher。example",
                ],
            ),
            (
                "a@xn--bcher-kva.xn--p1ai",
                vec!["a@bücher.рф", "a@xn--bcher-kva.рф", "a@bücher.xn--p1ai", "a@xn--bcher-kva.xn--p1ai"],
            ),
            ("rené@example.com", vec!["rené@example.com", "rene\u{301}@example.com", "RENE\u{301}@example.com"]),
            ("ώ@xn--bya.example", vec!["ώ@ω.example", "\u{1f7d}@Ω.example", "\u{1ffb}@\u{2126}.example"]),
        ] {
            let spellings = spellings(key);
            for text in all {
                let address = Address::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
                assert_eq!(address.key, key, "{text}");
                assert_eq!(super::key(text), key, "{text}");
                assert!(spellings.contains(&fold(&address.stored)), "{text} is stored as {}", address.stored);
            }
        }
        for (one, other) in [("a@bücher.example", "a@bucher.example"), ("a@faß.example", "a@fass.example")] {
            assert_ne!(key(one), key(other));
        }
    }

    #[test]
    fn a_plain_address_has_one_spelling_and_its_key_is_not_copied() {
        let address = Address::parse("ana@example.com").unwrap();
        assert!(matches!(address.key, Cow::Borrowed("ana@example.com")));
        assert!(!has_spellings("xn--ana@example.com") && spellings("ana@example.com") == ["ana@example.com"]);
    }

    /// Addresses that fold to the same text must be the same mailbox, or two users would get the same folded address.
    #[test]
    fn for_every_letter_the_key_follows_from_the_folded_form_and_is_stable() {
        // Letters that case or normalization changes, and a sample of the eleven thousand similar Hangul syllables.
        let changes = |letter: &char| {
            let text = letter.to_string();
            fold(&text) != text || !letter.to_uppercase().eq([*letter]) || nfc(&text) != text || nfd(&text) != text
        };
        let is_hangul = |letter: &char| ('\u{ac00}'..='\u{d7a3}').contains(letter) && u32::from(*letter) % 97 > 0;
        for letter in ('\0'..=char::MAX).filter(|letter| !is_hangul(letter) && changes(letter)) {
            for text in [format!("a{letter}b@x.example"), format!("{letter}@x.example"), format!("a@b{letter}.example")]
            {
                let Ok(address) = Address::parse(&text) else { continue };
                assert_eq!(key(&fold(&text)), address.key, "{text}");
                assert_eq!(key(&address.key), address.key, "{text}");
                assert_eq!(key(&address.stored), address.key, "{text}");
                assert!(spellings(&address.key).contains(&fold(&address.stored)), "{text}: {address:?}");
            }
        }
    }
}
