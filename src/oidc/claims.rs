//! What a verified ID token says about a person.
//!
//! Owns which name and address may be shown: only what the provider vouches for.

use serde_json::Value;

use crate::config::OidcConfig;
use crate::shown_text::{is_shown_as_it_is, is_valid_name, to_name};

/// The longest e-mail address that is taken from a token, in characters. Larger: pages with absurd addresses. Smaller:
/// long addresses are not shown.
const MAX_TEXT: usize = 255;

/// An accepted token.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    pub(super) subject: String,
    /// What a person is recognized by on pages and in the audit log: the e-mail address if the provider has verified
    /// it, or else the subject. Anyone may be able to choose everything else.
    pub(super) email: String,
    /// Shown next to a verified address.
    pub(super) name: Option<String>,
    /// Whether the e-mail address is verified.
    is_verified: bool,
    pub(super) all: Value,
}

impl Claims {
    /// The claims of a verified token. `None` if it names no subject that can be shown.
    pub(super) fn of(claims: Value, config: &OidcConfig) -> Option<Self> {
        // Unchanged: a text that is cut or normalized is another person's.
        let subject = claims["sub"].as_str().filter(|sub| is_valid_name(sub))?.to_owned();
        let is_verified = is_verified(&claims, config);
        let address = claims["email"].as_str().map(str::trim).filter(|text| is_verified && is_plain(text));
        let address = address.map(ToOwned::to_owned);
        let name = claims["name"].as_str().and_then(to_name).filter(|name| !looks_like_an_address(name));
        let (email, name) = match address {
            Some(address) => (address, name),
            None => (subject.clone(), None),
        };
        Some(Self { subject, email, name, is_verified, all: claims })
    }

    /// A claim, if the token has it. Not `null`, and not an e-mail address that the provider has not verified: its users
    /// may be able to choose it.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let counts = name != "email" || self.is_verified;
        self.all.get(name).filter(|value| counts && !value.is_null())
    }
}

/// Whether the e-mail address is the person's. Some providers send `email_verified` as a text or a number, which may mean
/// anything. Entra ID sends `xms_edov` in its place, if it is configured as an optional claim: the domain of the address
/// is one that the directory has verified. It is documented as a boolean and also sent as a text. Without either
/// claim, the address is verified only if the operator vouches for the provider.
fn is_verified(claims: &Value, config: &OidcConfig) -> bool {
    let (verified, by_domain) = (&claims["email_verified"], &claims["xms_edov"]);
    if !verified.is_null() {
        return verified == true;
    }
    if config.is_entra() && !by_domain.is_null() {
        return by_domain == true || by_domain == "1" || by_domain == "true";
    }
    config.emails_are_verified
}

/// Whether an address can be stored and shown as it is.
fn is_plain(address: &str) -> bool {
    let is_short = (1..=MAX_TEXT).contains(&address.chars().count());
    is_short && !address.contains(char::is_whitespace) && is_shown_as_it_is(address)
}

/// Whether a name has one of the characters that are, or look like, the `@` of an address.
fn looks_like_an_address(name: &str) -> bool {
    name.contains(['@', '\u{FE6B}', '\u{FF20}'])
}
