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
        find(&self.all, name).filter(|value| counts && !value.is_null())
    }
}

/// A claim by its name, or by the names that lead to it, with dots between them: `realm_access.roles`. A longer name of a claim
/// wins over a shorter one, so a name with dots, such as `https://example.com/roles`, is found too.
fn find<'c>(claims: &'c Value, name: &str) -> Option<&'c Value> {
    let claims = claims.as_object()?;
    let dots = name.rmatch_indices('.').map(|(dot, _)| dot);
    claims.get(name).or_else(|| dots.filter_map(|dot| find(claims.get(&name[..dot])?, &name[dot + 1..])).next())
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_found_by_its_own_name_or_by_the_names_that_lead_to_it() {
        let claims = json!({
            "roles": ["top"],
            "realm_access": { "roles": ["nested"], "more": { "deep": "deeper" }, "none": null },
            "realm_access.roles": ["written"],
            "https://example.com/roles": ["namespaced"],
            "https://example.com/app": { "roles.of.forms": ["both"] },
            "a": { "b.c": 1, "b": { "c": 2, "d": 3 } },
            "a.b": { "c": 4 },
            "x": { "y": { "z": 5 } },
            "x.y": 6,
            "text": "a.b",
            "list": [{ "roles": 7 }],
        });
        for (name, value) in [
            ("roles", json!(["top"])),
            ("realm_access.roles", json!(["written"])),
            ("realm_access.more.deep", json!("deeper")),
            ("realm_access.none", Value::Null),
            ("https://example.com/roles", json!(["namespaced"])),
            ("https://example.com/app.roles.of.forms", json!(["both"])),
            ("a.b.c", json!(4)),
            ("a.b.d", json!(3)),
            // The shorter names are tried where the longer ones lead nowhere.
            ("x.y.z", json!(5)),
        ] {
            assert_eq!(find(&claims, name), Some(&value), "{name}");
        }
        for name in
            ["", ".", "roles.", ".roles", "realm_access.", "realm_access.none.x", "text.a", "list.0.roles", "b.c"]
        {
            assert_eq!(find(&claims, name), None, "{name}");
        }
    }
}
