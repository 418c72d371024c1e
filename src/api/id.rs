//! Ids in requests and responses: `for_3`, `sub_1001`; requests may also use the bare number.
//!
//! Owns the prefixes. Whether an id exists is the store's answer.

use std::fmt;

use serde::{Serialize, Serializer};

/// The kind of resource that an id identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdKind {
    Form,
    Submission,
    Group,
    Subscription,
}

impl IdKind {
    /// The prefix of the number.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Form => "for_",
            Self::Submission => "sub_",
            Self::Group => "grp_",
            Self::Subscription => "hook_",
        }
    }

    /// The name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Form => "form",
            Self::Submission => "submission",
            Self::Group => "group",
            Self::Subscription => "subscription",
        }
    }

    /// Parses a prefixed or bare id; `None` if it is neither or exceeds 64 bits.
    pub(super) fn parse(self, text: &str) -> Option<i64> {
        parse_number(text.strip_prefix(self.prefix()).unwrap_or(text))
    }

    /// The id of a number.
    pub(super) fn id(self, number: i64) -> Id {
        Id { kind: self, number }
    }
}

/// Parses a positive 64-bit integer: digits only, no sign.
pub(super) fn parse_number(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&number: &i64| digits && number > 0)
}

/// An id with its prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id {
    kind: IdKind,
    number: i64,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.prefix(), self.number)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixed_and_bare_ids_are_read_and_nothing_else() {
        assert_eq!(IdKind::Form.parse("for_3"), Some(3));
        assert_eq!(IdKind::Form.parse("3"), Some(3));
        assert_eq!(IdKind::Submission.parse("9223372036854775807"), Some(i64::MAX));
        for text in
            ["", "for_", "sub_3", "for_for_3", "0", "-1", "+1", "1.0", " 1", "9223372036854775808", "for_x", "٣"]
        {
            assert_eq!(IdKind::Form.parse(text), None, "{text:?}");
        }
    }
}
