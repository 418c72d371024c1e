//! What this node last read of the registry, in a SQLite file that only its user can read.
//!
//! It has the tables of a registry, so that an increment costs what it changes. Texts contain the addresses of databases
//! with their passwords; they are sealed if the configuration has a key.

use crate::seal::Seals;
use crate::store::registry::{CertificateRecord, Head, RegistryRow};
use crate::store::{DatabaseLocation, Registry, StoreError, with_causes};

/// The file. Faults are logged once: the registry is what matters, and it is there while a node writes here.
#[derive(Debug)]
pub(super) struct Snapshot {
    location: DatabaseLocation,
    seals: Seals,
    open: Option<Registry>,
    is_faulty: bool,
}

impl Snapshot {
    pub(super) fn new(location: &DatabaseLocation, seals: &Seals) -> Self {
        Self { location: location.clone(), seals: seals.clone(), open: None, is_faulty: false }
    }

    /// Which registry the file was read from. None if there is none, or it can't be read.
    pub(super) async fn epoch(location: &DatabaseLocation) -> Option<String> {
        location.file().filter(|file| file.exists())?;
        let registry = Registry::open(location).await.ok()?;
        let head = registry.head("").await;
        registry.close().await;
        // Nothing was ever read into it.
        head.ok().filter(|head| head.revision > 0).map(|head| head.epoch)
    }

    /// What the file has. None if there is none, or it can't be read.
    pub(super) async fn read(location: &DatabaseLocation, seals: &Seals) -> Option<(Head, Vec<RegistryRow>)> {
        let file = location.file().filter(|file| file.exists())?;
        let read = async {
            let registry = Registry::open(location).await?;
            let whole = super::loading::read_whole(&registry, "").await;
            registry.close().await;
            whole
        };
        let (head, rows) = match read.await {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(file = %file.display(), cause = with_causes(&error), "the snapshot can't be read");
                return None;
            }
        };
        let rows = rows.into_iter().map(|mut row| {
            row.text = row.text.map(|text| seals.open(&text, &row.slug)).transpose().ok()?;
            Some(row)
        });
        let rows: Option<Vec<_>> = rows.collect();
        if rows.is_none() {
            tracing::error!(file = %file.display(), "the snapshot is sealed with a key that is not configured");
        }
        // Nothing was ever read into it.
        Some((head, rows?)).filter(|(head, _)| head.revision > 0)
    }

    /// Keeps rows. With `is_whole`, there are no others.
    pub(super) async fn keep(&mut self, head: &Head, rows: &[RegistryRow], is_whole: bool) {
        let sealed: Vec<_> = rows
            .iter()
            .map(|row| {
                let text = row.text.as_ref().map(|text| self.seals.seal(text, &row.slug));
                RegistryRow { text, ..row.clone() }
            })
            .collect();
        let outcome = self.write(head, &sealed, is_whole).await;
        self.note(outcome);
    }

    /// Reads the certificates that the file has of a registry, some at a time. Returns the revision of the last one.
    pub(super) async fn read_certificates(
        &mut self,
        epoch: &str,
        at_once: u32,
        mut take: impl FnMut(&[CertificateRecord]),
    ) -> i64 {
        let read = async {
            let mut last = 0;
            if !self.location.file().is_some_and(std::path::Path::exists) {
                return Ok(last);
            }
            let registry = self.open().await?;
            if registry.head("").await?.epoch == epoch {
                loop {
                    let rows = registry.certificates_after(last, at_once).await?;
                    let Some(row) = rows.last() else { break };
                    last = row.revision;
                    take(&rows);
                }
            }
            self.open = Some(registry);
            Ok::<_, StoreError>(last)
        };
        read.await.unwrap_or_else(|error| {
            tracing::error!(cause = with_causes(&error), "the certificates of the snapshot can't be read");
            0
        })
    }

    /// Keeps certificates. With `is_whole`, there are no others.
    pub(super) async fn keep_certificates(&mut self, rows: &[CertificateRecord], is_whole: bool) {
        let keep = async {
            let registry = self.open().await?;
            registry.copy_certificates(rows, is_whole).await?;
            self.open = Some(registry);
            Ok(())
        };
        let outcome = keep.await;
        self.note(outcome);
    }

    fn note(&mut self, outcome: Result<(), StoreError>) {
        match &outcome {
            Err(error) if !self.is_faulty => {
                let cause = with_causes(error);
                tracing::warn!(file = ?self.location, cause, "no snapshot of the registry can be kept");
            }
            Ok(()) if self.is_faulty => tracing::info!("a snapshot of the registry is kept again"),
            _ => {}
        }
        self.is_faulty = outcome.is_err();
    }

    /// The file, which is opened again after a fault.
    async fn open(&mut self) -> Result<Registry, StoreError> {
        match self.open.take() {
            Some(open) => Ok(open),
            None => Registry::open(&self.location).await,
        }
    }

    async fn write(&mut self, head: &Head, rows: &[RegistryRow], is_whole: bool) -> Result<(), StoreError> {
        let registry = self.open().await?;
        registry.copy(head, rows, is_whole).await?;
        self.open = Some(registry);
        Ok(())
    }
}
