//! Which names tokens and administrators can have: those that pages, lists and logs can show.
//!
//! A name is shown inside sentences and links, so it must be visible, stay on its line, and leave the order of the words
//! around it only.

use crate::store::mailbox::is_invisible;

/// The longest name, in characters.
///
/// Larger: pages that show it are wider. Smaller: long names have to be shortened.
pub(super) const MAX_NAME: usize = 255;

/// What a name must be, for whoever wrote another one.
pub(super) const RULE: &str = "a name has 1 to 255 characters, one of them visible, and no control characters, line breaks or changes of direction";

/// Whether something can have this name.
pub(super) fn is_valid(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.chars().count())
        && !name.chars().any(|char| char.is_control() || breaks_the_line_or_its_order(char))
        && name.chars().any(|char| !char.is_whitespace() && !is_invisible(char))
}

/// Separators of lines and paragraphs, and the embeddings, overrides and isolates of bidirectional text (UAX #9), which
/// also reorder what follows the name. Letters have a direction without them.
pub(super) fn breaks_the_line_or_its_order(char: char) -> bool {
    matches!(char, '\u{2028}' | '\u{2029}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
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
        ] {
            assert_eq!(is_valid(&name), expected, "{name:?}");
        }
    }
}
