//! The language that a browser asks for (RFC 9110, section 12.5.4).

use http::HeaderMap;
use http::header::ACCEPT_LANGUAGE;

use crate::config::Language;

/// The language that a browser prefers among those there are, and otherwise English.
///
/// A range is one of them if its first subtag is (`de-CH`), as lookup does it (RFC 4647, section 3.4). Of ranges of the
/// same weight, the first counts. What can't be read is passed over: a page in English is better than a refusal.
pub(in crate::administration) fn preferred(headers: &HeaderMap) -> Language {
    let values = headers.get_all(ACCEPT_LANGUAGE).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(|value| value.split(',')).filter_map(weighed);
    let best = ranges.fold(None, |best: Option<(Language, f32)>, (language, weight)| match best {
        Some((_, heaviest)) if heaviest >= weight => best,
        _ if weight > 0.0 => Some((language, weight)),
        _ => best,
    });
    best.map_or(Language::English, |(language, _)| language)
}

/// A range of a language that there is, and its weight.
fn weighed(range: &str) -> Option<(Language, f32)> {
    let (range, parameter) = range.split_once(';').unwrap_or((range, "q=1"));
    let (name, weight) = parameter.split_once('=')?;
    let weight = weight.trim().parse().ok().filter(|weight| (0.0..=1.0).contains(weight))?;
    let primary = range.trim().split('-').next().unwrap_or_default();
    let is_spoken = |language: &Language| language.tag().eq_ignore_ascii_case(primary);
    let language = Language::ALL.into_iter().find(is_spoken)?;
    name.trim().eq_ignore_ascii_case("q").then_some((language, weight))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_heaviest_language_that_there_is_is_preferred() {
        use Language::{English, German};

        for (values, expected) in [
            (&[][..], English),
            (&["de"], German),
            (&["DE-ch"], German),
            (&["de-DE,de;q=0.9,en-US;q=0.8,en;q=0.7"], German),
            (&["en-US,en;q=0.9,de;q=0.8"], English),
            (&["fr-CH, fr;q=0.9, en;q=0.3, de;q=0.7, *;q=0.5"], German),
            (&["fr", "de;q=0.1"], German),
            (&["en;q=0.5, de;q=0.5"], English),
            (&["de;q=0.5, en;q=0.5"], German),
            (&["de ; Q = 0.9"], German),
            (&["de;q=0"], English),
            (&["en;q=0, de;q=0"], English),
            (&["*"], English),
            (&["deu"], English),
            (&["de_DE"], English),
            (&["de;q=2"], English),
            (&["de;q=NaN"], English),
            (&["de;q="], English),
            (&["de;level=1"], English),
            (&["", ",;=,-"], English),
        ] {
            let header = |value: &&str| (ACCEPT_LANGUAGE, HeaderValue::from_str(value).unwrap());
            assert_eq!(preferred(&values.iter().map(header).collect()), expected, "{values:?}");
        }
        let bytes = [(ACCEPT_LANGUAGE, HeaderValue::from_bytes(b"\xff").unwrap())];
        assert_eq!(preferred(&bytes.into_iter().collect()), English);
    }
}
