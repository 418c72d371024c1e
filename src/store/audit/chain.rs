//! What chains the rows of the audit log: digests, and the salts that let a value be erased.
//!
//! The digest of a row is SHA-256 over these bytes, in this order:
//!
//! 1. the digest of the row before, preceded by its length; the first row has an empty one before it
//! 2. `id` and `at`, the latter in microseconds since 1970, each as 8 bytes
//! 3. `source` and `action`, each preceded by its length in bytes
//! 4. the commitments of `actor`, `network`, `subject` and `details`, of 32 bytes each
//!
//! Numbers and lengths have 8 bytes, most significant first. So no two different rows have the same encoding.
//!
//! A commitment is SHA-256 of a salt and the value; that of no network is 32 zeros. The salt of each value, 16 random bytes, is
//! in a column beside it. So a value can be erased and the chain still verifies: the value becomes empty, and its
//! salt becomes the commitment. Nobody who has the chain can find the value by trying, because the salt is gone too.

use sha2::{Digest, Sha256};

use super::AuditRecord;

/// The bytes of a salt.
pub(super) const SALT: usize = 16;

/// The commitment of a value with its salt; that itself if the value was erased. `None` if the salt is none of them.
pub(super) fn commitment(salt: &[u8], value: Option<&str>) -> Option<[u8; 32]> {
    match (salt.len(), value) {
        (0, None) => Some([0; 32]),
        (SALT, Some(value)) => Some(Sha256::new().chain_update(salt).chain_update(value).finalize().into()),
        (_, Some("")) => salt.try_into().ok(),
        _ => None,
    }
}

impl AuditRecord {
    /// The digest that this row must have after a row with the digest `before`. `None` if a salt is none.
    pub(super) fn digest_after(&self, before: &[u8]) -> Option<[u8; 32]> {
        let mut encoded = Vec::new();
        let text = |encoded: &mut Vec<u8>, bytes: &[u8]| {
            encoded.extend((bytes.len() as u64).to_be_bytes());
            encoded.extend(bytes);
        };
        text(&mut encoded, before);
        encoded.extend(self.id.to_be_bytes());
        encoded.extend(self.at.as_microsecond().to_be_bytes());
        text(&mut encoded, self.source.as_bytes());
        text(&mut encoded, self.action.as_bytes());
        let values = [Some(&*self.actor), self.network.as_deref(), Some(&self.subject), Some(&self.details)];
        for (salt, value) in self.salts.iter().zip(values) {
            encoded.extend(commitment(salt, value)?);
        }
        Some(Sha256::digest(&encoded).into())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn record() -> AuditRecord {
        AuditRecord {
            id: 7,
            at: Timestamp::from_microsecond(1_700_000_000_123_456).unwrap(),
            actor: "ana@acme.example".into(),
            source: "administration".into(),
            network: None,
            action: "token.create".into(),
            subject: "token 3".into(),
            details: "{}".into(),
            salts: [vec![1; SALT], Vec::new(), vec![3; SALT], vec![4; SALT]],
            digest: Vec::new(),
        }
    }

    /// A row with a network.
    fn with_network(network: &str) -> AuditRecord {
        let mut record = AuditRecord { network: Some(network.into()), ..record() };
        record.salts[1] = vec![2; SALT];
        record
    }

    fn digest(record: &AuditRecord) -> [u8; 32] {
        record.digest_after(&[1; 32]).expect("it has salts")
    }

    #[test]
    fn every_column_and_the_border_between_columns_changes_the_digest() {
        let original = digest(&record());
        let variants = [
            AuditRecord { id: 8, ..record() },
            AuditRecord { at: Timestamp::from_microsecond(1_700_000_000_123_457).unwrap(), ..record() },
            AuditRecord { actor: "eve@acme.example".into(), ..record() },
            AuditRecord { source: "command".into(), ..record() },
            with_network("192.0.2.0/24"),
            with_network(""),
            AuditRecord { source: "administrationtoken".into(), action: ".create".into(), ..record() },
            AuditRecord { salts: [vec![3; SALT], Vec::new(), vec![1; SALT], vec![4; SALT]], ..record() },
            AuditRecord { subject: "token 3{}".into(), details: String::new(), ..record() },
            AuditRecord { details: "{ }".into(), ..record() },
        ];
        for variant in variants {
            assert_ne!(digest(&variant), original, "{variant:?}");
        }
        assert_ne!(record().digest_after(&[2; 32]), Some(original));
        assert_ne!(record().digest_after(&[]), Some(original));
        assert_eq!(digest(&record()), original);
    }

    #[test]
    fn an_erased_value_keeps_the_digest_and_another_split_of_salt_and_value_does_not() {
        let original = digest(&record());
        let with = |salt: Vec<u8>, actor: &str| {
            let mut record = AuditRecord { actor: actor.into(), ..record() };
            record.salts[0] = salt;
            record
        };
        let erased = commitment(&[1; SALT], Some("ana@acme.example")).unwrap();
        assert_eq!(digest(&with(erased.to_vec(), "")), original);
        assert_eq!(with(erased.to_vec(), "eve@acme.example").digest_after(&[]), None);
        assert_eq!(with([&[1; SALT][..], b"ana"].concat(), "@acme.example").digest_after(&[]), None);
        assert_eq!(
            with([&[1; SALT][..], b"ana@acme.example"].concat(), "")
                .digest_after(&[1; 32])
                .map(|found| found == original),
            Some(false)
        );
        assert_eq!(with(Vec::new(), "").digest_after(&[]), None);
        let no_network = AuditRecord { network: Some(String::new()), ..record() };
        assert_eq!(no_network.digest_after(&[]), None, "an empty text is not the same as none");
    }

    #[test]
    fn the_encoding_stays_the_documented_one() {
        // Computed from the description at the head of this file: stored rows must verify with later versions.
        let encoded = [
            &0_u64.to_be_bytes()[..],
            &7_i64.to_be_bytes(),
            &1_700_000_000_123_456_i64.to_be_bytes(),
            &14_u64.to_be_bytes(),
            b"administration",
            &12_u64.to_be_bytes(),
            b"token.create",
            &Sha256::digest([&[1; 16][..], b"ana@acme.example"].concat()),
            &Sha256::digest([&[2; 16][..], b"192.0.2.0/24"].concat()),
            &Sha256::digest([&[3; 16][..], b"token 3"].concat()),
            &Sha256::digest([&[4; 16][..], b"{}"].concat()),
        ];
        let expected: [u8; 32] = Sha256::digest(encoded.concat()).into();
        assert_eq!(with_network("192.0.2.0/24").digest_after(&[]), Some(expected));
    }
}
