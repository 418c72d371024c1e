//! Numbers as pages show them: with a separator between thousands.

use std::fmt::Display;

use super::texts::NumbersTexts;

impl NumbersTexts {
    /// A whole number.
    pub(super) fn show(&self, number: impl Display) -> String {
        let number = number.to_string();
        let (sign, digits) = number.split_at(usize::from(number.starts_with('-')));
        let mut shown = sign.to_owned();
        for (at, digit) in digits.char_indices() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                shown.push_str(&self.thousands);
            }
            shown.push(digit);
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use crate::administration::texts::Texts;
    use crate::config::Language;

    #[test]
    fn thousands_are_separated_as_the_language_does() {
        let show = |language| {
            let numbers = &Texts::of(language).numbers;
            [0, 7, 999, 1_000, 12_345, 1_234_567, -1_000, -100].map(|number| numbers.show(number)).join(" ")
        };
        assert_eq!(show(Language::English), "0 7 999 1,000 12,345 1,234,567 -1,000 -100");
        assert_eq!(show(Language::German), "0 7 999 1.000 12.345 1.234.567 -1.000 -100");
    }
}
