//! The records of a zone, written as the lines of a zone file.

use hickory_server::proto::rr::rdata::SOA;
use hickory_server::proto::rr::{Name, RData, Record, RecordType};

/// The negative TTL of every zone, in seconds.
pub(crate) const NEGATIVE_TTL: u32 = 900;

/// The TTL of every record, in seconds.
pub(super) const TTL: u32 = 3600;

/// A name in lower case.
pub(super) fn absolute(name: &str) -> Name {
    let mut name = Name::from_ascii(name).expect("a name").to_lowercase();
    name.set_fqdn(true);
    name
}

/// What every zone begins with.
pub(super) fn soa(apex: &Name) -> Record {
    let data = SOA::new(apex.clone(), apex.clone(), 1, 3600, 600, 86_400, NEGATIVE_TTL);
    Record::from_rdata(apex.clone(), TTL, RData::SOA(data))
}

/// The records of a zone: a line for each, as `www A 192.0.2.1`.
pub(super) fn parsed(apex: &Name, records: &str) -> Vec<Record> {
    let lines = records.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut parts = line.splitn(3, ' ');
            let mut part = || parts.next().expect("a name, a type and a value");
            let (name, kind, value) = (part(), part(), part());
            let name = match name {
                "@" => apex.clone(),
                below => Name::from_ascii(below).unwrap().append_domain(apex).unwrap(),
            };
            let kind: RecordType = kind.parse().expect("a type");
            let data = if kind == RecordType::CNAME || kind == RecordType::NS {
                RData::try_from_str(kind, &format!("{value}."))
            } else {
                RData::try_from_str(kind, value)
            };
            Record::from_rdata(name, TTL, data.expect("a value"))
        })
        .collect()
}
