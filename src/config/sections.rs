//! Where the tenants of a file begin, by the lines that look like their headers.
//!
//! Such a line may also be a part of a string or an array, so whoever cuts a text there has to parse the parts.

use std::ops::Range;

/// The byte ranges of the `[[tenant]]` tables, in file order.
pub(super) fn tenants(text: &str) -> Vec<Range<usize>> {
    let mut tenants: Vec<Range<usize>> = Vec::new();
    let (mut offset, mut in_tenant) = (0, false);
    for line in text.split_inclusive('\n') {
        if let Some(inner) = line.trim_start().strip_prefix('[') {
            let is_tenant = inner.starts_with("[tenant]]");
            if is_tenant {
                tenants.push(offset..offset);
            }
            // A header that begins otherwise is not a part of the tenant above it.
            in_tenant = is_tenant || in_tenant && inner.trim_start_matches(['[', ' ', '\t']).starts_with("tenant");
        }
        offset += line.len();
        if let Some(section) = tenants.last_mut().filter(|_| in_tenant) {
            section.end = offset;
        }
    }
    tenants
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cut_before_each_tenant() {
        let text = "a = 1\n[[tenant]]\nb = 2\n[tenant.tls.x]\n  [[tenant]] # second\n[[ tenant ]]\n[gateway]\nc = 3\n[[tenant]]\n";
        let found: Vec<_> = tenants(text).into_iter().map(|section| &text[section]).collect();
        let expected = ["[[tenant]]\nb = 2\n[tenant.tls.x]\n", "  [[tenant]] # second\n[[ tenant ]]\n", "[[tenant]]\n"];
        assert_eq!(found, expected);
    }
}
