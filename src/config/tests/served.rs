//! Checks of a configuration while another one is served.

use std::fs;
use std::sync::Arc;

use super::{ACME, Config, Folder, GATEWAY, ServedConfig};

/// `acme` with its own certificate for `forms.acme.org`.
fn own(files: &str) -> String {
    let acme = ACME.replace("[[tenant]]", "[[tenant]]\ndomains = [\"forms.acme.org\"]");
    let table = format!("certificate = \"certs/{files}.pem\"\nprivate_key = \"certs/{files}.key\"\n");
    format!("{GATEWAY}{acme}[tenant.tls.\"forms.acme.org\"]\n{table}")
}

/// The faults of a text while another configuration is served.
fn faults(folder: &Folder, served: &Config, text: &str) -> Vec<String> {
    folder.write("tenants.toml", text);
    let tenant = |slug: &str| served.tenants.iter().find(|tenant| *tenant.slug == *slug).cloned();
    let served = ServedConfig::new(served.gateway.certificate.as_ref(), &tenant);
    let examination = Config::examine(&folder.path("tenants.toml"), Some(&served));
    examination.problems.iter().map(|problem| folder.short(problem)).collect()
}

#[test]
fn a_reload_checks_only_what_it_changes() {
    let folder = Folder::new();
    let served = folder.load(&own("acme")).unwrap_or_else(|problems| panic!("{problems}"));
    fs::remove_file(folder.path("certs/acme.pem")).unwrap();
    assert!(faults(&folder, &served, &own("acme")).is_empty());
    assert!(faults(&folder, &served, &own("acme").replace("\"Acme\"", "\"Other\"")).is_empty());
    let more = own("acme").replace("[\"forms.acme.org\"]", "[\"forms.acme.org\", \"acme.org\"]");
    assert_eq!(faults(&folder, &served, &more), ["tenants.toml:8:30 no certificate covers `acme.org`"]);
    assert_eq!(faults(&folder, &served, &own("none")).len(), 2, "other files");
    assert!(folder.load(&own("acme")).is_err(), "with nothing served, all is checked");

    let gateway = own("acme").replacen("certs/wildcard", "certs/other", 2);
    assert_eq!(
        faults(&folder, &served, &gateway),
        ["tenants.toml:4:15 can't read the certificate", "tenants.toml:5:15 can't read the private key"]
    );
}

#[test]
fn a_served_certificate_that_expired_does_not_block_a_reload_and_a_new_one_does() {
    let folder = Folder::new();
    let served = folder.load(&own("acme")).unwrap_or_else(|problems| panic!("{problems}"));
    for (file, name) in
        [("certs/acme", "forms.acme.org"), ("certs/other", "forms.acme.org"), ("certs/wildcard", "*.example.com")]
    {
        folder.issue(file, name, 2020..2021);
    }
    assert!(faults(&folder, &served, &own("acme").replace("\"Acme\"", "\"Other\"")).is_empty());
    assert_eq!(faults(&folder, &served, &own("other")), ["tenants.toml:14:15 the certificate is out of date"]);
}

#[test]
fn another_certificate_of_the_gateway_must_cover_all_that_the_one_before_did() {
    let folder = Folder::new();
    let served = folder.load(&format!("{GATEWAY}{ACME}")).unwrap_or_else(|problems| panic!("{problems}"));
    let other = format!("{GATEWAY}{ACME}").replace("certs/wildcard", "certs/acme");
    assert_eq!(faults(&folder, &served, &other), ["tenants.toml:10:11 no certificate covers `acme.example.com`"]);
}

#[test]
fn a_tenant_that_is_already_served_is_kept_once() {
    let folder = Folder::new();
    let globex = ACME.replace("acme", "globex").replace("Acme", "Globex");
    let served = folder.load(&format!("{GATEWAY}{ACME}{globex}")).unwrap_or_else(|problems| panic!("{problems}"));
    let tenant = |slug: &str| served.tenants.iter().find(|tenant| *tenant.slug == *slug).cloned();
    let known = ServedConfig::new(served.gateway.certificate.as_ref(), &tenant);
    // Once with the same text, once with a different text of the same meaning.
    for acme in [ACME.to_owned(), ACME.replace(" = ", "=")] {
        folder.write("tenants.toml", format!("{GATEWAY}{}{acme}", globex.replace("Globex", "Other")));
        let examination = Config::examine(&folder.path("tenants.toml"), Some(&known));
        assert!(!Arc::ptr_eq(&examination.tenants[0], &served.tenants[1]), "it changed");
        assert!(Arc::ptr_eq(&examination.tenants[1], &served.tenants[0]), "it did not, but for its place");
    }
}

#[test]
fn a_tenant_that_is_already_served_is_still_compared_with_others() {
    let folder = Folder::new();
    let served = folder.load(&format!("{GATEWAY}{ACME}")).unwrap_or_else(|problems| panic!("{problems}"));
    let globex = ACME.replace("\"acme\"", "\"globex\"");
    let faults = faults(&folder, &served, &format!("{GATEWAY}{ACME}{globex}{ACME}"));
    let of = |title: &str| faults.iter().filter(|fault| fault.contains(title)).count();
    let titles = ["the slug `acme` is taken", "the host `acme.example.com` is claimed", "a database of its own"];
    assert_eq!(titles.map(of), [1, 2, 2], "{faults:?}");
}
