//! JSON as other programs write it: with a byte order mark, and with whole numbers that have a point or an exponent.
//!
//! Shared by everything that reads bodies of clients, and documents of other servers.

/// A text without the byte order mark that some editors and PowerShell write at its beginning (RFC 8259, section 8.1, allows
/// ignoring it).
pub(crate) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// The integer below 2^53 that a number of JSON writes with a point or an exponent.
pub(crate) fn whole(text: &str) -> Option<i64> {
    let (sign, number) = text.strip_prefix('-').map_or((1, text), |number| (-1, number));
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{integer}{fraction}");
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() && !digits.is_empty() {
        return Some(0);
    }
    let zeros = i64::try_from(digits.len() - significant.len()).ok()? - i64::try_from(fraction.len()).ok()?;
    let zeros = usize::try_from(exponent.parse::<i32>().map(i64::from).ok()? + zeros).ok()?;
    let magnitude: i64 = significant.parse().ok()?;
    let value = magnitude.checked_mul(10_i64.checked_pow(zeros.try_into().ok()?)?)?;
    (value < 1 << 53).then_some(sign * value)
}
