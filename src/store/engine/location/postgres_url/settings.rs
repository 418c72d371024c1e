//! Parses `options`, the command line that a server applies to a session (PostgreSQL documentation, 32.1.2).
//!
//! A pooler does not pass it on, so the settings are extracted. Other words, such as Neon's `endpoint=…`, are meant
//! for the proxy that accepts the connection, and are kept unchanged.

/// The settings of a command line, `-c name=value` or `--name=value`, and the other words of it.
pub(super) fn split(options: &str) -> (Vec<(String, String)>, Vec<String>) {
    let (mut settings, mut others) = (Vec::new(), Vec::new());
    let mut words = words(options).into_iter();
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
            Some("") => words.next(),
            rest => rest.map(str::to_owned),
        };
        match setting.as_deref().and_then(|setting| setting.split_once('=')) {
            // The server reads a dash as an underscore.
            Some((name, value)) => settings.push((name.trim().replace('-', "_"), value.to_owned())),
            None => others.extend([Some(word), setting].into_iter().flatten()),
        }
    }
    (settings, others)
}

/// Splits at whitespace. A backslash escapes the next character.
fn words(options: &str) -> Vec<String> {
    let (mut words, mut word, mut characters) = (Vec::new(), None::<String>, options.chars());
    while let Some(character) = characters.next() {
        if character.is_ascii_whitespace() {
            words.extend(word.take());
        } else {
            let literal = if character == '\\' { characters.next() } else { Some(character) };
            word.get_or_insert_default().extend(literal);
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_separated_from_other_words() {
        let (settings, others) = split(r"-c search_path=a,\ b --work-mem=4MB endpoint=ep-x -cgeqo=off -e");
        let settings: Vec<_> = settings.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(settings, [("search_path", "a, b"), ("work_mem", "4MB"), ("geqo", "off")]);
        assert_eq!(others, ["endpoint=ep-x", "-e"]);
    }
}
