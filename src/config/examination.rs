//! The result of checking a configuration: everything that was read, and every fault.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::context::LoadContext;
use super::gateway::GatewayTable;
use super::include::{self, Sources};
use super::places::Places;
use super::problem::{Problem, Problems};
use super::source::SourceSpan;
use super::{Config, GatewayConfig, TenantConfig, WatchedFolders, coverage, unique};

/// Whether to read and check certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertificateChecks {
    Run,
    Skip,
}

/// The result of checking a configuration, also a faulty one.
#[derive(Debug)]
pub struct Examination {
    /// The `[gateway]` table, if it has no fault.
    pub gateway: Option<GatewayConfig>,
    /// The tenants whose tables have no fault; all tenants if there is no problem. A tenant that is already served and
    /// did not change is the same `Arc`.
    pub tenants: Vec<Arc<TenantConfig>>,
    /// Every fault.
    pub problems: Vec<Problem>,
    /// Warnings, in file order.
    pub warnings: Vec<Problem>,
    /// The folders to watch for a corrected file.
    pub folders: WatchedFolders,
    /// The files that were read, to detect later whether they changed.
    pub sources: Sources,
    redis: Option<SourceSpan>,
    registry: Option<SourceSpan>,
    places: Places,
    read_at: SystemTime,
}

impl Examination {
    pub(super) fn read(path: &Path, context: &LoadContext<'_>, certificates: CertificateChecks) -> Self {
        let read_at = SystemTime::now();
        let files = include::read(path, context);
        unique::check(&files.tenants, context);
        if certificates == CertificateChecks::Run {
            coverage::check(files.gateway.as_ref(), &files.tenants, context);
        }
        if let Some(registry) = files.gateway.as_ref().and_then(GatewayTable::registry_config) {
            unique::check_own(registry, &files.tenants, context);
        }
        let redis = files.gateway.as_ref().and_then(|gateway| gateway.redis.clone());
        let registry = files.gateway.as_ref().and_then(|gateway| gateway.registry.clone());
        let (gateway, places) = files.gateway.map(|gateway| (gateway.config, gateway.places)).unwrap_or_default();
        let mut tenants = Vec::with_capacity(files.tenants.len());
        tenants.extend(files.tenants.into_iter().filter_map(|tenant| tenant.config));
        let folders = WatchedFolders::of(files.folders, gateway.as_ref(), &tenants);
        let (sources, mut warnings) = (files.sources, files.warnings);
        let (further, problems) = context.take_problems().into_iter().partition(Problem::is_warning);
        warnings.extend::<Vec<_>>(further);
        Self { gateway, tenants, problems, warnings, folders, sources, redis, registry, places, read_at }
    }

    /// A fault of the configured Redis. The report points at the key and does not show its value.
    #[must_use]
    pub fn redis_problem(&self, title: impl Into<String>) -> Option<Problem> {
        self.redis.as_ref().map(|span| Problem::at(span, title))
    }

    /// What would keep a node from using the addresses and folders that the configuration names, and warnings about them.
    /// Looks at the system.
    #[must_use]
    pub fn place_problems(&self) -> Vec<Problem> {
        self.places.problems()
    }

    /// A fault of the registry. The report points at the key and does not show its value.
    #[must_use]
    pub fn registry_problem(&self, title: impl Into<String>) -> Option<Problem> {
        self.registry.as_ref().map(|span| Problem::at(span, title))
    }

    /// Returns the configuration if it has no fault.
    ///
    /// # Errors
    /// Every fault, in file order.
    pub fn into_config(self) -> Result<Config, Problems> {
        let Self { gateway, tenants, problems, warnings, folders, sources, read_at, .. } = self;
        Problems::none_of(problems)?;
        let gateway = gateway.expect("without a fault, the gateway's table is whole");
        let warnings = warnings.iter().map(ToString::to_string).collect();
        Ok(Config { gateway, tenants, folders, sources, read_at, warnings })
    }
}
