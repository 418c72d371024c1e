//! Versions of resources, and the conditions of requests on them (RFC 7644, section 3.14).

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::store::{DirectoryError, DirectoryGroup, DirectoryUser};

/// The version of a resource, as `ETag` and `meta.version` have it: a digest of everything that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version(String);

impl Version {
    fn of(shown: &impl Serialize) -> Self {
        let text = serde_json::to_vec(shown).expect("texts and numbers are JSON");
        let hex: String = Sha256::digest(text).iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        Self(format!("W/\"{hex}\""))
    }

    pub(super) fn of_user(user: &DirectoryUser) -> Self {
        let values = &user.values;
        let names = (&values.display_name, &values.given_name, &values.family_name, &values.formatted_name);
        Self::of(&(user.id, &values.user_name, &values.email, names, &values.external_id, values.active))
    }

    /// Of a group whose members are not counted, it is a version that no client has.
    pub(super) fn of_group(group: &DirectoryGroup) -> Self {
        Self::of(&(group.id, &group.name, &group.external_id, group.members))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).expect("quotes and digits are ASCII")
    }

    /// Whether a header lists this version, strong or weak, or `*`. `None` without such a header.
    fn is_listed(&self, headers: &HeaderMap, name: &HeaderName) -> Option<bool> {
        let own = self.0.trim_start_matches("W/");
        let mut values = headers.get_all(name).iter().peekable();
        values.peek()?;
        Some(values.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(',')).any(|tag| {
            let tag = tag.trim();
            tag == "*" || tag.trim_start_matches("W/") == own
        }))
    }

    /// Refuses a write of another version than `If-Match` names.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), DirectoryError> {
        if self.is_listed(headers, &IF_MATCH).unwrap_or(true) { Ok(()) } else { Err(DirectoryError::OtherVersion) }
    }

    /// Whether the client has this version already.
    pub(super) fn is_known(&self, headers: &HeaderMap) -> bool {
        self.is_listed(headers, &IF_NONE_MATCH).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_names_versions_strong_or_weak() {
        let version = Version("W/\"a1\"".to_owned());
        for (value, listed) in [
            (None, None),
            (Some("W/\"a1\""), Some(true)),
            (Some("\"a1\""), Some(true)),
            (Some("\"b\", W/\"a1\""), Some(true)),
            (Some("*"), Some(true)),
            (Some("W/\"b\""), Some(false)),
            (Some(""), Some(false)),
        ] {
            let headers: HeaderMap =
                value.into_iter().map(|value| (IF_MATCH, HeaderValue::from_static(value))).collect();
            assert_eq!(version.is_listed(&headers, &IF_MATCH), listed, "{value:?}");
            assert_eq!(version.check(&headers).is_ok(), listed != Some(false), "{value:?}");
        }
    }
}
