//! Instants as every JSON of formgate has them.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde::{Serialize, Serializer};

const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

/// An instant that always has six fractional digits: `2024-05-01T13:45:30.123456Z`. So instants sort as text, and programs that
/// expect a fixed form read all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rfc3339Micros(pub(crate) Timestamp);

impl Rfc3339Micros {
    /// Appends its text.
    pub(crate) fn write(self, body: &mut Vec<u8>) {
        PRINTER.print_timestamp(&self.0, body).expect("memory takes it");
    }
}

impl std::fmt::Display for Rfc3339Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&PRINTER.timestamp_to_string(&self.0))
    }
}

impl Serialize for Rfc3339Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&PRINTER.timestamp_to_string(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_has_six_digits_however_exact_it_is() {
        for (at, text) in [
            ("2024-05-01T13:45:30Z", "2024-05-01T13:45:30.000000Z"),
            ("2024-05-01T13:45:30.1Z", "2024-05-01T13:45:30.100000Z"),
            ("2024-05-01T13:45:30.123456789Z", "2024-05-01T13:45:30.123456Z"),
        ] {
            let instant = Rfc3339Micros(at.parse().unwrap());
            assert_eq!(instant.to_string(), text);
            assert_eq!(serde_json::to_value(instant).unwrap(), text);
        }
    }
}
