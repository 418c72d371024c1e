//! Which text pages, lists and logs can show, and which names tokens, administrators and tenants can have.
//!
//! A name is shown inside sentences and links, so it must be visible, stay on its line, leave the order of the words
//! around it alone, and differ visibly from every other name.

use icu_properties::props::{
    CanonicalCombiningClass, DefaultIgnorableCodePoint, Emoji, EmojiPresentation, GeneralCategory, Script,
};
use icu_properties::{CodePointMapData, CodePointSetData};

/// The longest name, in characters.
///
/// Larger: pages that show it are wider. Smaller: long names have to be shortened.
pub(crate) const MAX_NAME: usize = 255;

/// How many marks a character may have above and below it (UTS #39, section 5.4).
///
/// Larger: marks cover the lines around them. Smaller: words of some languages are refused.
const MAX_MARKS: usize = 4;

/// What a name must be, for whoever wrote another one.
pub(crate) const NAME_RULE: &str = "a name has 1 to 255 visible characters, with single spaces between them: no other \
                                    blanks, no control characters, line breaks, invisible characters, changes of \
                                    direction or characters for private use, and at most 4 marks on a letter";

/// Whether something can have this name.
pub(crate) fn is_valid_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.chars().count()) && name.chars().eq(as_name(name))
}

/// The name with single spaces, and without what [`is_valid_name`] refuses in it; none if nothing is left, or it is too long.
pub(crate) fn to_name(text: &str) -> Option<String> {
    let shown: String = judged(text).filter_map(|(char, is_shown)| is_shown.then_some(char)).collect();
    let name = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    is_valid_name(&name).then_some(name)
}

/// A name that others chose freely: what [`is_valid_name`] refuses in it can be seen.
pub(crate) fn shown_name(name: &str) -> String {
    as_name(name).collect()
}

/// A text whose lines are kept: what is not shown of it can be seen.
pub(crate) fn shown_lines(text: &str) -> String {
    let shown =
        |(char, is_shown)| if is_shown || matches!(char, '\n' | '\t') { char } else { char::REPLACEMENT_CHARACTER };
    judged(text).map(shown).collect()
}

/// Whether all of a text is shown, and nothing around it changes.
pub(crate) fn is_shown_as_it_is(text: &str) -> bool {
    judged(text).all(|(_, is_shown)| is_shown)
}

/// Zero-width characters, soft hyphens, byte order marks, fillers, and the marks, embeddings, overrides and isolates
/// of bidirectional text (UAX #9); letters have a direction without them. Not blanks and control characters.
pub(crate) fn is_invisible(char: char) -> bool {
    /// Symbols by category, but rendered as nothing.
    const EMPTY: [char; 2] = ['\u{2800}', '\u{FFFC}'];
    !char.is_ascii()
        && (CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(char)
            || category(char) == GeneralCategory::Format
            || EMPTY.contains(&char))
}

/// The characters of a name, each that it can't have replaced.
fn as_name(name: &str) -> impl Iterator<Item = char> {
    let mut after = name.chars().skip(1).map(Some).chain([None]);
    // As if a blank stood before it.
    let mut before = ' ';
    judged(name).map(move |(char, is_shown)| {
        let is_last = after.next().flatten().is_none();
        let is_blank = char.is_whitespace();
        let fits = !is_blank || char == ' ' && before != ' ' && !is_last;
        before = char;
        if is_shown && fits { char } else { char::REPLACEMENT_CHARACTER }
    })
}

/// The characters of a text, and whether each is shown as it is, between those before and after it: it is visible, and
/// changes neither the line nor the order of what surrounds it.
fn judged(text: &str) -> impl Iterator<Item = (char, bool)> {
    let mut after = text.chars().skip(1).map(Some).chain([None]);
    let (mut before, mut marks) = (None, 0);
    text.chars().map(move |char| {
        let after = after.next().flatten();
        let is_mark = matches!(category(char), GeneralCategory::NonspacingMark | GeneralCategory::EnclosingMark);
        let is_shown = if is_unshown(char) {
            before.is_some_and(|before| shapes(char, before, after))
        } else {
            !is_mark || before.is_some_and(|before: char| !before.is_whitespace()) && marks < MAX_MARKS
        };
        if is_shown {
            marks = if is_mark { marks + 1 } else { 0 };
            before = Some(char);
        }
        (char, is_shown)
    })
}

/// Whether a character has no place in shown text: it is not visible, has no meaning that all know, or changes the line or
/// the order of what surrounds it.
fn is_unshown(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}')
        || matches!(category(char), GeneralCategory::PrivateUse | GeneralCategory::Unassigned)
        || is_invisible(char)
}

fn category(char: char) -> GeneralCategory {
    CodePointMapData::<GeneralCategory>::new().get(char)
}

/// Whether a joiner or a variation selector shapes the characters around it: between emoji, between Arabic letters, and
/// after the virama of Indic scripts (RFC 5892, appendix A). Elsewhere it is only not seen.
fn shapes(char: char, before: char, after: Option<char>) -> bool {
    const NON_JOINER: char = '\u{200C}';
    const JOINER: char = '\u{200D}';
    const AS_TEXT: char = '\u{FE0E}';
    const AS_EMOJI: char = '\u{FE0F}';
    let is_emoji = |char: char| !char.is_ascii() && CodePointSetData::new::<Emoji>().contains(char);
    let is_colourful = CodePointSetData::new::<EmojiPresentation>().contains(before);
    let is_arabic = |char: char| CodePointMapData::<Script>::new().get(char) == Script::Arabic;
    let is_virama =
        || CodePointMapData::<CanonicalCombiningClass>::new().get(before) == CanonicalCombiningClass::Virama;
    match char {
        NON_JOINER | JOINER => after.is_some_and(|after| {
            char == JOINER && (is_emoji(before) || before == AS_EMOJI) && is_emoji(after)
                || is_arabic(before) && is_arabic(after)
                || is_virama() && after.is_alphabetic()
        }),
        AS_EMOJI => is_emoji(before) && !is_colourful,
        AS_TEXT => is_colourful,
        _ => false,
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
            ("Việt Nam".into(), true),
            ("e\u{302}\u{323}".into(), true),
            ("\u{301}a".into(), false),
            ("a \u{301}b".into(), false),
            (format!("a{}", "\u{301}".repeat(4)), true),
            (format!("a{}", "\u{301}".repeat(5)), false),
            ("a\u{E000}b".into(), false),
            ("a\u{10FFFD}".into(), false),
            ("a\u{FFFE}".into(), false),
            ("a\u{FDD0}".into(), false),
            ("a\u{378}".into(), false),
            ("a\u{FFFC}".into(), false),
        ] {
            assert_eq!(is_valid_name(&name), expected, "{name:?}");
        }
    }

    #[test]
    fn a_name_does_not_look_like_another_one() {
        let invisible = "\u{ad}\u{34f}\u{61c}\u{115f}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{202a}\u{202e}\u{2060}\
            \u{2066}\u{2069}\u{2800}\u{3164}\u{fe0f}\u{feff}\u{fff9}\u{e0001}\u{e007f}";
        for char in invisible.chars() {
            for name in
                ["{}Acme", "Ac{}me", "Acme{}", "1{}", "👩{}a", "😀{}"].map(|name| name.replace("{}", &char.to_string()))
            {
                assert!(!is_valid_name(&name), "{name:?}");
                assert_eq!(to_name(&name).as_deref(), Some(&*name.replace(char, "")), "{name:?}");
            }
        }
        let blanks = "\u{A0}\u{1680}\u{2003}\u{202F}\u{3000}";
        for name in
            blanks.chars().map(|blank| format!("Ac{blank}me")).chain(["Ac  me", " Ac me", "Ac me "].map(String::from))
        {
            assert!(!is_valid_name(&name), "{name:?}");
            assert_eq!(to_name(&name).as_deref(), Some("Ac me"), "{name:?}");
            assert!(!["Ac me", "Acme"].contains(&&*shown_name(&name)), "{name:?}");
        }
        assert_eq!(shown_name(" a\u{A0}b  c\u{202E}"), "\u{FFFD}a\u{FFFD}b \u{FFFD}c\u{FFFD}");
        assert_eq!(shown_name("Ac me"), "Ac me");
        for nothing in ["", " ", "\u{200B}", "\u{202E} \u{2066}", &"x".repeat(256)] {
            assert_eq!(to_name(nothing), None, "{nothing:?}");
        }
    }
}
