//! A certificate authority of the test process's own, and the certificates that it issues.
//!
//! The test client trusts this authority and no other, so that an answer proves which certificate was served.

use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;

static AUTHORITY: LazyLock<CertifiedIssuer<'static, KeyPair>> = LazyLock::new(|| {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "formgate test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("keys can be made")).expect("a valid authority")
});

/// A certificate and its key, both PEM.
pub(crate) struct Issued {
    /// The leaf and the authority above it, which the client knows.
    pub(crate) certificate: PathBuf,
    /// The key of the leaf.
    pub(crate) private_key: PathBuf,
}

/// Issues a certificate for the names, wildcards included, into a folder; the files are named after the first.
pub(crate) fn issue(folder: &Path, names: &[&str]) -> Issued {
    issue_with(folder, names, |_| ())
}

/// Issues one that callers take from the beginning of a day to that of another, counted from today.
pub(crate) fn issue_for_days(folder: &Path, names: &[&str], days: Range<i32>) -> Issued {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let part = |part: i8| u8::try_from(part).expect("months and days are positive");
    let day = |days: i32| {
        let day = today.checked_add(jiff::Span::new().days(days)).expect("a day that calendars have");
        rcgen::date_time_ymd(day.year().into(), part(day.month()), part(day.day()))
    };
    issue_with(folder, names, |params| (params.not_before, params.not_after) = (day(days.start), day(days.end)))
}

/// Issues one that says of itself that no server has it.
pub(crate) fn issue_for_client(folder: &Path, names: &[&str]) -> Issued {
    issue_with(folder, names, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth])
}

fn issue_with(folder: &Path, names: &[&str], differ: impl FnOnce(&mut CertificateParams)) -> Issued {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let stem = names.first().expect("a certificate has a name").replace('*', "wildcard");
    let key = KeyPair::generate().expect("keys can be made");
    let mut params = CertificateParams::new(names).expect("valid names");
    differ(&mut params);
    let leaf = params.signed_by(&key, &AUTHORITY).expect("signing works");
    let issued =
        Issued { certificate: folder.join(format!("{stem}.pem")), private_key: folder.join(format!("{stem}.key")) };
    fs::create_dir_all(folder).expect("the folder of this run can be written");
    fs::write(&issued.certificate, leaf.pem() + &AUTHORITY.pem()).expect("the folder of this run can be written");
    fs::write(&issued.private_key, key.serialize_pem()).expect("the folder of this run can be written");
    fs::set_permissions(&issued.private_key, Permissions::from_mode(0o600)).expect("the file is ours");
    issued
}

/// Writes the authority's own certificate into a folder, for servers that are told whom to trust.
pub(crate) fn authority(folder: &Path) -> PathBuf {
    let file = folder.join("authority.pem");
    fs::write(&file, AUTHORITY.pem()).expect("the folder of this run can be written");
    file
}

/// The authority's own certificate.
pub(crate) fn authority_der() -> rustls::pki_types::CertificateDer<'static> {
    AUTHORITY.der().clone()
}

/// What the test client trusts.
pub(crate) fn trust() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(AUTHORITY.der().clone()).expect("the authority is well-formed");
    roots
}
