//! Why a text is not a domain, in the language of a page.
//!
//! In English these are the words of the API and of commands; a test compares them.

use super::texts::DomainFaultsTexts;
use crate::host::NotADomain;

/// Why a text is not a domain.
pub(super) fn words_of(fault: NotADomain, text: &'static DomainFaultsTexts) -> &'static str {
    match fault {
        NotADomain::IpAddress => &text.ip_address,
        NotADomain::Empty => &text.empty,
        NotADomain::HasUrlParts => &text.has_url_parts,
        NotADomain::Wildcard => &text.wildcard,
        NotADomain::EmptyLabel => &text.empty_label,
        NotADomain::LongLabel => &text.long_label,
        NotADomain::LongName => &text.long_name,
        NotADomain::Punycode => &text.punycode,
        NotADomain::Characters => &text.characters,
        NotADomain::SingleLabel => &text.single_label,
        NotADomain::SpecialUse => &text.special_use,
        NotADomain::NumericEnd => &text.numeric_end,
        NotADomain::NotInCertificates => &text.not_in_certificates,
        NotADomain::PublicSuffix => &text.public_suffix,
    }
}

#[cfg(test)]
mod tests {
    use super::super::texts::Texts;
    use super::*;
    use crate::config::Language;
    use crate::host::HostName;

    #[test]
    fn a_fault_in_english_has_the_words_of_the_api() {
        for (typed, fault) in [
            ("192.0.2.1", NotADomain::IpAddress),
            ("", NotADomain::Empty),
            ("https://acme.org", NotADomain::HasUrlParts),
            ("*.acme.org", NotADomain::Wildcard),
            ("a..org", NotADomain::EmptyLabel),
            (&format!("{}.org", "a".repeat(64)), NotADomain::LongLabel),
            (&format!("{}org", "a.".repeat(126)), NotADomain::LongName),
            ("xn--a.org", NotADomain::Punycode),
            ("a b.org", NotADomain::Characters),
            ("forms", NotADomain::SingleLabel),
            ("localhost", NotADomain::SpecialUse),
            ("forms.123", NotADomain::NumericEnd),
            ("_x.org", NotADomain::NotInCertificates),
            ("co.uk", NotADomain::PublicSuffix),
        ] {
            assert_eq!(HostName::parse_added(typed), Err(fault), "{typed:?}");
            let of = |language| words_of(fault, &Texts::of(language).domain_faults);
            let shown = of(Language::English).trim_end_matches('.');
            assert_eq!(shown.to_lowercase(), fault.in_full().replace('`', "").to_lowercase());
            assert!(of(Language::German).ends_with('.') && of(Language::German) != of(Language::English));
        }
    }
}
