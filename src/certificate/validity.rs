//! The validity period of a certificate.
//!
//! Compares with a given time and knows no clock, so that tests and the edge decide what "now" is.

use std::fmt;

use jiff::Timestamp;
use x509_parser::certificate::Validity as Written;

/// The period in which a certificate is valid, in Unix seconds, both ends included (RFC 5280, section 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: i64,
    /// The last second: when it expires.
    pub until: i64,
}

/// A certificate that is not valid now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfDate {
    /// Its last second has passed.
    #[error("it expired on {}", Day(*.0))]
    Expired(i64),
    /// Its first second is in the future.
    #[error("it is not valid before {}", Day(*.0))]
    NotYet(i64),
}

impl Validity {
    pub(super) fn of(written: &Written) -> Self {
        Self { from: written.not_before.timestamp(), until: written.not_after.timestamp() }
    }

    /// Whether the certificate is valid.
    ///
    /// # Errors
    /// It has expired or is not valid yet.
    pub fn check(self, now: Timestamp) -> Result<(), OutOfDate> {
        let now = now.as_second();
        if now > self.until {
            Err(OutOfDate::Expired(self.until))
        } else if now < self.from {
            Err(OutOfDate::NotYet(self.from))
        } else {
            Ok(())
        }
    }
}

/// A time as reports show it, to the minute.
struct Day(i64);

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_second(self.0) {
            Ok(at) => write!(f, "{}", at.strftime("%Y-%m-%d %H:%M UTC")),
            // X.509 years have at most four digits, so this does not happen.
            Err(_) => write!(f, "second {} since 1970", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_valid_from_its_first_to_its_last_second() {
        let validity = Validity { from: 86_400, until: 2 * 86_400 };
        let at = |second| validity.check(Timestamp::from_second(second).unwrap()).map_err(|fault| fault.to_string());
        assert_eq!(at(86_399), Err("it is not valid before 1970-01-02 00:00 UTC".to_owned()));
        assert_eq!((at(86_400), at(2 * 86_400)), (Ok(()), Ok(())));
        assert_eq!(at(2 * 86_400 + 1), Err("it expired on 1970-01-03 00:00 UTC".to_owned()));
    }
}
