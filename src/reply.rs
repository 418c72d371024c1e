//! An answer before it is dressed for the wire: status, body and the few headers that belong to the answer itself.
//!
//! The gate adds what every answer carries: request id, rate headers, encoding.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Serialize;

use crate::memory::MemoryPermit;

/// How many fields an answer has when it is dressed: so many find room without moving.
const FIELDS: usize = 10;

/// An answer with a JSON body.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Headers of this answer alone.
    pub headers: HeaderMap,
    /// JSON text.
    pub body: Bytes,
    /// What is reserved for the body until it is sent.
    pub held: Option<MemoryPermit>,
}

impl Reply {
    /// An answer with a value as JSON.
    #[must_use]
    pub fn json(status: StatusCode, value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("what formgate answers with has text keys and no failing parts");
        Self::of_json(status, body)
    }

    /// An answer with JSON that is written already.
    #[must_use]
    pub(crate) fn of_json(status: StatusCode, body: Vec<u8>) -> Self {
        Self { status, headers: HeaderMap::with_capacity(FIELDS), body: body.into(), held: None }
    }

    /// The same answer with one more header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }
}

/// The numbers below a thousand, three digits each.
static DIGITS: [[u8; 3]; 1000] = {
    let (mut digits, mut number) = ([[b'0'; 3]; 1000], 0);
    while number < digits.len() {
        let (hundreds, tens, ones) = (number / 100, number / 10 % 10, number % 10);
        digits[number] = [b'0' + hundreds as u8, b'0' + tens as u8, b'0' + ones as u8];
        number += 1;
    }
    digits
};

/// A number as a header's value, for which a small one needs no memory of its own.
pub(crate) fn number(number: u64) -> HeaderValue {
    let digits = usize::try_from(number).ok().and_then(|number| DIGITS.get(number));
    let Some(digits) = digits else { return number.into() };
    let zeros = usize::from(number < 100) + usize::from(number < 10);
    HeaderValue::from_static(std::str::from_utf8(&digits[zeros..]).expect("digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_as_everywhere() {
        for written in [0, 9, 10, 60, 99, 100, 999, 1000, 70_000, u64::MAX] {
            assert_eq!(number(written), HeaderValue::from(written));
        }
    }
}
