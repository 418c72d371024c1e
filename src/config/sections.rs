//! Parses a file of many tenants one section at a time.
//!
//! A document of 100,000 tenants takes 600 MB as one tree; the section of one tenant takes a few kilobytes, and is
//! freed before the next one is parsed. Owns where to split: at lines that look like headers, regardless of what
//! precedes them. That is sound: such a line could only be something else inside an unclosed string or array, and then
//! the section before it fails to parse. So if every section parses, every split was right. A file with a section that
//! does not parse is parsed as a whole, as is one that configures tenants in a way that can't be split.

use std::borrow::Cow;
use std::ops::Range;

use toml::de::{DeTable, Error};

/// The largest file that is parsed as a whole to report its faults. Larger: a typing mistake in a file of very many
/// tenants costs a running gateway twenty times the file in memory. Smaller: fewer files get the syntax errors that
/// reading from the start of the file would give.
const MAX_WHOLE_FILE: usize = 4 * 1024 * 1024;

/// The largest part of a file that is parsed at once: a tenant, or all that is outside of tenants. Larger: the parser takes some
/// fifty times a file that is not TOML at all. Smaller: a tenant with tens of thousands of domains is refused.
const MAX_PART: usize = 4 * 1024 * 1024;

/// How many syntax errors of a part are reported. Larger: a file that is not TOML at all gets a report many times its size.
/// Smaller: an operator fixes the errors in more rounds.
const MAX_ERRORS: usize = 1000;

/// A file split into sections.
pub(super) struct Sections<'t> {
    /// Everything outside of tenants, at its original offsets: tenants in between are blanked out.
    pub(super) root: Cow<'t, str>,
    /// The byte ranges of the tenants, in file order.
    pub(super) tenants: Vec<Range<usize>>,
}

impl<'t> Sections<'t> {
    /// Splits a text before each `[[tenant]]`, and before a header after a tenant that does not belong to it.
    pub(super) fn split(text: &'t str) -> Self {
        let mut tenants: Vec<Range<usize>> = Vec::new();
        let (mut offset, mut root_until, mut in_tenant) = (0, None, false);
        let mut later_root: Vec<Range<usize>> = Vec::new();
        for line in text.split_inclusive('\n') {
            match Header::parse(line) {
                Some(Header::Tenant) => {
                    root_until.get_or_insert(offset);
                    tenants.push(offset..offset);
                    in_tenant = true;
                }
                Some(Header::Root) if root_until.is_some() && in_tenant => {
                    later_root.push(offset..offset);
                    in_tenant = false;
                }
                _ => {}
            }
            offset += line.len();
            let grown = if in_tenant { tenants.last_mut() } else { later_root.last_mut() };
            if let Some(section) = grown {
                section.end = offset;
            }
        }
        let first = &text[..root_until.unwrap_or(text.len())];
        if later_root.is_empty() {
            return Self { root: Cow::Borrowed(first), tenants };
        }
        let mut root = first.to_owned();
        for section in later_root {
            // The previous line ends where this one begins.
            root.extend(std::iter::repeat_n(' ', section.start - 1 - root.len()));
            root.push('\n');
            root.push_str(&text[section]);
        }
        Self { root: Cow::Owned(root), tenants }
    }

    /// Whether a part is too large to be parsed.
    pub(super) fn has_oversized_part(&self, text: &str) -> bool {
        let of_tenants: usize = self.tenants.iter().map(Range::len).sum();
        text.len() - of_tenants > MAX_PART || self.tenants.iter().any(|section| section.len() > MAX_PART)
    }

    /// The document outside of tenants; `None` if the text must be parsed as a whole.
    pub(super) fn parse_root(&self) -> Option<DeTable<'_>> {
        let root = DeTable::parse(&self.root).ok()?.into_inner();
        (self.tenants.is_empty() || !root.contains_key("tenant")).then_some(root)
    }
}

/// The document of a tenant's section; `None` if the text must be parsed as a whole.
pub(super) fn parse_tenant(section: &str) -> Option<DeTable<'_>> {
    let document = DeTable::parse(section).ok()?.into_inner();
    (document.len() == 1 && document.contains_key("tenant")).then_some(document)
}

/// The syntax errors with their spans; none if the text is valid TOML after all.
pub(super) fn faults(text: &str) -> Vec<(Range<usize>, String)> {
    let messages = |errors: Vec<Error>, start: usize| {
        let located = move |error: Error| {
            let span = error.span().unwrap_or(0..0);
            (span.start + start..span.end + start, error.message().to_owned())
        };
        errors.into_iter().take(MAX_ERRORS).map(located).collect::<Vec<_>>()
    };
    let of = |section: Range<usize>| messages(DeTable::parse_recoverable(&text[section.clone()]).1, section.start);
    if text.len() > MAX_WHOLE_FILE {
        let sections = Sections::split(text);
        let broken = |section: &&Range<usize>| DeTable::parse(&text[(*section).clone()]).is_err();
        let broken: Vec<_> = sections.tenants.iter().filter(broken).collect();
        // A multi-line string may contain anything, also lines that look like headers.
        let certain =
            |section: &&Range<usize>| !["\"\"\"", "'''"].iter().any(|mark| text[(*section).clone()].contains(mark));
        if !broken.is_empty() && broken.iter().all(certain) {
            let root = messages(DeTable::parse_recoverable(&sections.root).1, 0);
            return root.into_iter().chain(broken.into_iter().flat_map(|section| of(section.clone()))).collect();
        }
    }
    of(0..text.len())
}

/// The headers `[tenant]`, which turn every `[[tenant]]` of the file into an error. Does not recognize multi-line
/// strings, so it is for files that are not valid TOML.
pub(super) fn single_brackets(text: &str) -> Vec<Range<usize>> {
    let mut offset = 0;
    let mut found = Vec::new();
    for line in text.split_inclusive('\n') {
        let start = offset + line.len() - line.trim_start().len();
        offset += line.len();
        let Some((inner, rest)) = line.trim().strip_prefix('[').and_then(|line| line.split_once(']')) else { continue };
        let is_alone = rest.is_empty() || rest.trim_start().starts_with('#');
        if is_alone && inner.trim() == "tenant" {
            found.push(start..start + inner.len() + 2);
        }
    }
    found
}

enum Header {
    /// `[[tenant]]`.
    Tenant,
    /// A table outside of tenants.
    Root,
}

impl Header {
    fn parse(line: &str) -> Option<Self> {
        let inner = line.trim_start().strip_prefix('[')?;
        if inner.starts_with("[tenant]]") {
            return Some(Self::Tenant);
        }
        let key = inner.trim_start_matches(['[', ' ', '\t']);
        (!key.starts_with("tenant")).then_some(Self::Root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cut_before_each_tenant() {
        let text = "a = 1\n[[tenant]]\nb = 2\n[tenant.tls.x]\n  [[tenant]] # second\n[[ tenant ]]\n[gateway]\nc = 3\n[[tenant]]\n";
        let sections = Sections::split(text);
        let tenants: Vec<_> = sections.tenants.iter().map(|section| &text[section.clone()]).collect();
        let expected = ["[[tenant]]\nb = 2\n[tenant.tls.x]\n", "  [[tenant]] # second\n[[ tenant ]]\n", "[[tenant]]\n"];
        assert_eq!(tenants, expected);
        assert_eq!(sections.root.len(), text.find("[[tenant]]\n[").unwrap_or(text.len() - "[[tenant]]\n".len()));
        assert_eq!(sections.root.find("[gateway]"), text.find("[gateway]"), "it keeps its offset");
        assert!(sections.parse_root().is_some_and(|root| root.contains_key("a") && root.contains_key("gateway")));
    }

    #[test]
    fn files_that_can_not_be_split_are_read_whole() {
        for text in [
            "tenant = [{ a = 1 }]\n[[tenant]]\n",
            "[tenant.tls]\n[[tenant]]\n",
            "[[tenant]]\na = 1\na = 2\n[[tenant]]\n",
            "[[tenant]]\na = \"\"\"\n[[tenant]]\n\"\"\"\n",
            "[[tenant]]\na = [\n[[tenant]]\n]\n",
            "[[tenant]]\n[tenants]\n",
            "[[tenant]]\n[tenant]\n",
            "[a]\n[[tenant]]\n[a]\n",
            "\"\"\"\n[[tenant]]\n\"\"\"\n",
        ] {
            let sections = Sections::split(text);
            let tenants = sections.tenants.iter().all(|section| parse_tenant(&text[section.clone()]).is_some());
            assert!(sections.parse_root().is_none() || !tenants, "{text}");
        }
    }

    #[test]
    fn syntax_errors_of_a_large_file_are_those_of_its_sections() {
        let valid = "[[tenant]]\na = 1\n".repeat(MAX_WHOLE_FILE / 16);
        let text = format!("{valid}[[tenant]]\na = = 1\n{valid}");
        let faults = faults(&text);
        let Some((span, _)) = faults.first() else { panic!("no fault") };
        assert_eq!(&text[span.start - 4..span.start + 3], "a = = 1");
        assert!(faults.iter().all(|(other, _)| (span.start..span.start + 4).contains(&other.start)), "{faults:?}");
        let held = format!("{valid}[[tenant]]\na = \"\"\"\n[[tenant]]\n\"\"\"\n");
        assert!(super::faults(&held).is_empty(), "a header within a string");
    }
}
