//! Which text pages, lists and logs can show, and which names tokens, administrators and tenants can have.
//!
//! A name is shown inside sentences and links, so it must be visible, stay on its line, leave the order of the words
//! around it alone, and differ visibly from every other name.

use icu_properties::props::{
    CanonicalCombiningClass, DefaultIgnorableCodePoint, Emoji, GeneralCategory, Script, VariationSelector,
};
use icu_properties::{CodePointMapData, CodePointSetData};

/// The longest name, in characters.
///
/// Larger: pages that show it are wider. Smaller: long names have to be shortened.
pub(crate) const MAX_NAME: usize = 255;

/// What a name must be, for whoever wrote another one.
pub(crate) const NAME_RULE: &str = "a name has 1 to 255 characters, one of them visible, and no control characters, \
                                    line breaks, invisible characters or changes of direction";

/// Whether something can have this name.
pub(crate) fn is_valid_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.chars().count())
        && is_shown_as_it_is(name)
        && name.chars().any(|char| !char.is_whitespace() && !is_invisible(char))
}

/// The name, without what [`is_valid_name`] refuses in it; none if nothing is left, or it is too long.
pub(crate) fn to_name(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|&char| !is_unshown(char)).collect();
    let name = text.trim();
    is_valid_name(name).then(|| name.to_owned())
}

/// Whether a character has no place in shown text: it is not visible, or changes the line or the order of what
/// surrounds it.
pub(crate) fn is_unshown(char: char) -> bool {
    char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') || is_invisible(char)
}

/// Zero-width characters, soft hyphens, byte order marks, fillers, and the marks, embeddings, overrides and isolates
/// of bidirectional text (UAX #9); letters have a direction without them. Not blanks and control characters.
pub(crate) fn is_invisible(char: char) -> bool {
    /// A symbol by category, but rendered as a blank.
    const BRAILLE_BLANK: char = '\u{2800}';
    !char.is_ascii()
        && (CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(char)
            || CodePointMapData::<GeneralCategory>::new().get(char) == GeneralCategory::Format
            || char == BRAILLE_BLANK)
}

/// Whether all of a text is shown, and nothing around it changes. An invisible character is part of what is shown where
/// it shapes the character before it.
fn is_shown_as_it_is(text: &str) -> bool {
    let mut before = None;
    text.chars().all(|char| {
        let before = before.replace(char);
        !is_unshown(char) || before.is_some_and(|before| shapes(char, before))
    })
}

/// Whether a joiner or a variation selector belongs to the character before it: in emoji, after an Arabic letter, and
/// after the virama of Indic scripts (RFC 5892, appendix A).
fn shapes(char: char, before: char) -> bool {
    const NON_JOINER: char = '\u{200C}';
    const JOINER: char = '\u{200D}';
    let is_emoji = |char: char| !char.is_ascii() && CodePointSetData::new::<Emoji>().contains(char);
    match char {
        NON_JOINER | JOINER => {
            (char == JOINER && (is_emoji(before) || before == '\u{FE0F}'))
                || CodePointMapData::<Script>::new().get(before) == Script::Arabic
                || CodePointMapData::<CanonicalCombiningClass>::new().get(before) == CanonicalCombiningClass::Virama
        }
        _ => CodePointSetData::new::<VariationSelector>().contains(char) && is_emoji(before),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_visible_and_leaves_what_surrounds_it_alone() {
        for (name, expected) in [
            (String::new(), false),
            ("a".into(), true),
            ("ü".repeat(255), true),
            ("ü".repeat(256), false),
            ("a\nb".into(), false),
            ("a\0b".into(), false),
            ("a\u{85}b".into(), false),
            ("a\u{2028}b".into(), false),
            ("\u{202E}gnp.exe".into(), false),
            ("a\u{2067}b".into(), false),
            ("\u{200B}".into(), false),
            (" \u{3164}\u{A0}\u{2800}".into(), false),
            ("<script>".into(), true),
            ("משרד ראשי".into(), true),
            ("👩\u{200D}🔧 Werkstatt".into(), true),
            ("❤\u{FE0F}\u{200D}🔥".into(), true),
            ("شرکت\u{200C}ها".into(), true),
            ("क्\u{200D}ष".into(), true),
        ] {
            assert_eq!(is_valid_name(&name), expected, "{name:?}");
        }
    }

    #[test]
    fn a_name_does_not_look_like_another_one() {
        let invisible = "\u{ad}\u{34f}\u{61c}\u{115f}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{202a}\u{202e}\u{2060}\
            \u{2066}\u{2069}\u{2800}\u{3164}\u{fe0f}\u{feff}\u{fff9}\u{e0001}\u{e007f}";
        for char in invisible.chars() {
            for name in [format!("{char}Acme"), format!("Ac{char}me"), format!("Acme{char}"), format!("1{char}")] {
                assert!(!is_valid_name(&name), "{name:?}");
                assert_eq!(to_name(&name).as_deref(), Some(&*name.replace(char, "")), "{name:?}");
            }
        }
        for nothing in ["", " ", "\u{200B}", "\u{202E} \u{2066}", &"x".repeat(256)] {
            assert_eq!(to_name(nothing), None, "{nothing:?}");
        }
    }
}
