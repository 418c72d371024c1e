//! An e-mail address within texts: where it is, in any spelling, and the text without it.
//!
//! A text may be JSON or have the query of a URL, which write some characters in another way. A longer address that contains this
//! one is another address.

use std::iter;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::store::mailbox;
use crate::store::statement::{Sql, fold, sql};

/// What takes the place of an address within a text.
const ERASED: &str = "(erased)";

/// The length of the longest escape that may stand before an address: `\u003c` of JSON.
const ESCAPE: usize = 6;

/// What queries of URLs escape.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'*');

/// The spellings of an address, folded.
pub(super) struct PersonAddress(Vec<String>);

impl PersonAddress {
    pub(super) fn of(email: &str) -> Self {
        let mut spellings = mailbox::spellings(&mailbox::key(email));
        spellings.push(fold(email));
        for spelling in spellings.clone() {
            let json = serde_json::to_string(&spelling).expect("a text is always JSON");
            spellings.push(json[1..json.len() - 1].to_owned());
            spellings.push(fold(&utf8_percent_encode(&spelling, QUERY).to_string()));
            spellings.push(spelling.replacen('@', "%40", 1));
        }
        spellings.sort_unstable();
        spellings.dedup();
        Self(spellings)
    }

    /// The spellings, folded.
    pub(super) fn spellings(&self) -> &[String] {
        &self.0
    }

    /// A condition that every row fulfills whose column has the address, and few others: databases fold only ASCII alike.
    pub(super) fn may_be_in(&self, column: &'static str) -> Sql {
        let mut parts: Vec<_> = self.0.iter().map(|spelling| longest_ascii(spelling)).collect();
        parts.sort_unstable();
        parts.dedup();
        let each = parts.into_iter().map(|part| {
            sql!(
                "{pg: strpos(lower({+column} COLLATE \"C\"), {part}) | lite: instr(lower({+column}), {part})} > 0",
                column = Sql::text(column),
                part,
            )
        });
        Sql::joined(each, " OR ")
    }

    /// Whether a text has the address, and not only a longer one.
    pub(super) fn is_in(&self, text: &str) -> bool {
        self.places(&fold(text)).next().is_some()
    }

    /// The text with something else in place of the address.
    pub(super) fn erased_from(&self, text: &str) -> String {
        let folded = fold(text);
        // Where each byte of the folded text comes from, and the end.
        let origins: Vec<usize> = text
            .char_indices()
            .flat_map(|(at, letter)| iter::repeat_n(at, letter.to_lowercase().map(char::len_utf8).sum()))
            .chain([text.len()])
            .collect();
        let mut places: Vec<_> = self.places(&folded).collect();
        places.sort_unstable();
        let (mut erased, mut at) = (String::with_capacity(text.len()), 0);
        for (from, until) in places {
            let (from, until) = (origins[from], origins[until]);
            if from >= at {
                erased.push_str(&text[at..from]);
                erased.push_str(ERASED);
                at = until;
            }
        }
        erased.push_str(&text[at..]);
        erased
    }

    /// Where a folded text has the address.
    fn places<'t>(&'t self, folded: &'t str) -> impl Iterator<Item = (usize, usize)> {
        let of_spelling = move |spelling: &'t String| {
            let places = folded.match_indices(spelling.as_str()).map(|(at, found)| (at, at + found.len()));
            places.filter(|(from, until)| begins_address(&folded[..*from]) && ends_address(&folded[*until..]))
        };
        self.0.iter().flat_map(of_spelling)
    }
}

/// The longest part of an address that has only ASCII. Every address has a part, which begins at its `@` at the latest.
fn longest_ascii(spelling: &str) -> &str {
    spelling.split(|letter: char| !letter.is_ascii()).max_by_key(|part| part.len()).unwrap_or_default()
}

/// Whether an address may begin after this text: not within a longer one. An escape is no part of it.
fn begins_address(before: &str) -> bool {
    let Some(last) = before.chars().next_back() else { return true };
    if !last.is_alphanumeric() && !matches!(last, '.' | '_' | '-' | '+') {
        return true;
    }
    let start = before.floor_char_boundary(before.len().saturating_sub(ESCAPE));
    let tail = &before[start..];
    let is_hexadecimal = |digits: &str, count| digits.len() == count && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let of_json = |escape: &str| {
        matches!(escape, "n" | "r" | "t" | "b" | "f")
            || escape.strip_prefix('u').is_some_and(|digits| is_hexadecimal(digits, 4))
    };
    tail.rsplit_once('\\').is_some_and(|(_, escape)| of_json(escape))
        || tail.rsplit_once('%').is_some_and(|(_, digits)| is_hexadecimal(digits, 2))
}

/// Whether an address may end before this text.
fn ends_address(after: &str) -> bool {
    let mut next = after.chars();
    match next.next() {
        None => true,
        Some('.') => !next.next().is_some_and(char::is_alphanumeric),
        Some(other) => !other.is_alphanumeric() && other != '-',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_a_text_and_not_within_a_longer_one() {
        let person = PersonAddress::of("Ana@Example.com");
        for (text, erased) in [
            ("ana@example.com", "(erased)"),
            ("by ANA@example.COM, again <ana@example.com>.", "by (erased), again <(erased)>."),
            (r#"{"email":"ana@example.com"}"#, r#"{"email":"(erased)"}"#),
            (r"first\nana@example.com\u003cana@example.com\u003e", r"first\n(erased)\u003c(erased)\u003e"),
            ("mailto:ana@example.com?x=ana@example.com", "mailto:(erased)?x=(erased)"),
            ("/hook?of=ana%40example.com&to=%3Cana%40example.com%3e", "/hook?of=(erased)&to=%3C(erased)%3e"),
            ("ana@example.com. ana@example.com.", "(erased). (erased)."),
            ("Grüße an ana@example.com", "Grüße an (erased)"),
            // Folding makes this letter longer.
            (
                r#"{"city":"İzmir, İSTANBUL","by":"ANA@example.com İ"}"#,
                r#"{"city":"İzmir, İSTANBUL","by":"(erased) İ"}"#,
            ),
        ] {
            assert!(person.is_in(text), "{text}");
            assert_eq!(person.erased_from(text), erased);
        }
        for other in
            ["mariana@example.com", "x.ana@example.com", "ana@example.community", "ana@example.com.au", "ana@example"]
        {
            assert!(!person.is_in(other), "{other}");
            assert_eq!(person.erased_from(other), other);
        }
    }

    #[test]
    fn an_address_has_the_spellings_of_its_domain_and_of_json() {
        let person = PersonAddress::of("ana@bücher.example");
        assert!(person.is_in("ana@xn--bcher-kva.example") && person.is_in("Ana@BÜCHER.example"));
        let quoted = PersonAddress::of(r#""ana"@example.com"#);
        assert_eq!(quoted.erased_from(r#"{"by":"\"ana\"@example.com"}"#), r#"{"by":"(erased)"}"#);
        let plus = PersonAddress::of("ana+forms@example.com");
        assert_eq!(plus.erased_from("?to=ana%2Bforms%40example.com"), "?to=(erased)");
        let capital = PersonAddress::of("ÄNNE@example.com");
        assert!(capital.is_in("änne@example.com") && capital.is_in("Änne@Example.com"));
    }

    #[test]
    fn rows_are_looked_for_by_what_every_database_folds_alike() {
        for (spelling, part) in [
            ("ana@example.com", "ana@example.com"),
            ("änne@example.com", "nne@example.com"),
            ("ä@bücher.example", "cher.example"),
        ] {
            assert_eq!(longest_ascii(spelling), part);
        }
    }
}
