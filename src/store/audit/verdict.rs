//! Verifies the chain of the audit log, page by page in its order.
//!
//! The end is read before each page. A row that another program adds meanwhile is then either in a later page, or
//! beyond the end that was read, and the next end covers it. So a log in use is verified without a long snapshot, and
//! never found broken because of a writer.
//!
//! If the log is intact, the ledger of reads is compared with the seals in it.

use jiff::civil::Date;

use super::{AuditRecord, COLUMNS};
use crate::store::reads::{ReadsVerdict, Seals};
use crate::store::statement::{Sql, sql};
use crate::store::{Store, StoreError};

/// How many rows are read at a time.
///
/// Larger: more memory. Smaller: more statements for a long log.
const ROWS_A_PAGE: i64 = 1000;

/// Whether the audit log and the ledger of reads are intact; if not, the first row or day that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditVerdict {
    /// Every row is there and unchanged, and every day of the ledger is as its seal says.
    Intact {
        /// How many rows there are.
        rows: u64,
        /// How many days of the ledger have a seal.
        days: u64,
    },
    /// A row does not have the digest that follows from it and the rows before.
    Changed {
        /// Its number.
        id: i64,
    },
    /// A row is missing.
    Missing {
        /// Its number.
        id: i64,
    },
    /// A row is there that was not added by formgate.
    Added {
        /// Its number.
        id: i64,
    },
    /// The recorded end is missing, so rows may be missing at the end, or all of them.
    EndMissing,
    /// A day of the ledger of reads does not have the digest of its newest seal.
    ReadsChanged {
        /// The day.
        day: Date,
    },
    /// A day of the ledger of reads has a seal and nothing else.
    ReadsMissing {
        /// The day.
        day: Date,
    },
    /// A day of the ledger of reads has no seal, though a later one does.
    ReadsAdded {
        /// The day.
        day: Date,
    },
}

/// The part of the log that was verified.
struct Verified {
    last: i64,
    digest: Vec<u8>,
}

impl Verified {
    /// Verifies the next row.
    fn add(&mut self, record: &AuditRecord) -> Result<(), AuditVerdict> {
        let expected = self.last + 1;
        if record.id < expected {
            return Err(AuditVerdict::Added { id: record.id });
        }
        if record.id > expected {
            return Err(AuditVerdict::Missing { id: expected });
        }
        if record.digest_after(&self.digest).is_none_or(|digest| digest[..] != record.digest) {
            return Err(AuditVerdict::Changed { id: record.id });
        }
        self.last = record.id;
        self.digest.clone_from(&record.digest);
        Ok(())
    }

    /// Compares the end of the rows with the recorded one. Each token was created by a row, so an empty log of an account
    /// with tokens has lost rows.
    fn end(&self, last: i64, digest: &[u8], has_tokens: bool) -> AuditVerdict {
        if last > self.last {
            AuditVerdict::Missing { id: self.last + 1 }
        } else if last < self.last {
            AuditVerdict::Added { id: last + 1 }
        } else if digest != self.digest {
            AuditVerdict::Changed { id: last }
        } else if last == 0 && has_tokens {
            AuditVerdict::Missing { id: 1 }
        } else {
            AuditVerdict::Intact { rows: last.unsigned_abs(), days: 0 }
        }
    }
}

impl Store {
    /// Verifies the whole audit log, and the ledger of reads by its seals.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn verify_audit(&self) -> Result<AuditVerdict, StoreError> {
        let (mut verified, mut seals) = (Verified { last: 0, digest: Vec::new() }, Seals::default());
        // Rows with numbers that formgate never gives are wrong too.
        let mut after = i64::MIN;
        loop {
            let mut reader = self.database.reader().await?;
            let end = sql!(
                "SELECT last_id, digest, EXISTS (SELECT 1 FROM tokens) FROM audit_state {scans: one token is enough}"
            );
            let Some(end) = reader.fetch_optional(end).await? else { return Ok(AuditVerdict::EndMissing) };
            let page = sql!(
                "SELECT {+columns} FROM audit_log WHERE id > {after} ORDER BY id LIMIT {rows}",
                columns = Sql::text(COLUMNS),
                after,
                rows = ROWS_A_PAGE,
            );
            let rows = reader.fetch_all(page).await?;
            drop(reader);
            if rows.is_empty() {
                let verdict = verified.end(end.get(0)?, &end.get::<Vec<u8>>(1)?, end.get(2)?);
                let AuditVerdict::Intact { rows, .. } = verdict else { return Ok(verdict) };
                return Ok(match self.verify_reads(seals, verified.last).await? {
                    ReadsVerdict::Intact(days) => AuditVerdict::Intact { rows, days },
                    ReadsVerdict::Changed(day) => AuditVerdict::ReadsChanged { day },
                    ReadsVerdict::Missing(day) => AuditVerdict::ReadsMissing { day },
                    ReadsVerdict::Added(day) => AuditVerdict::ReadsAdded { day },
                });
            }
            for row in &rows {
                let record = AuditRecord::read(row)?;
                if let Err(verdict) = verified.add(&record) {
                    return Ok(verdict);
                }
                seals.note(&record);
                after = record.id;
            }
        }
    }
}
