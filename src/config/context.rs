//! The context in which the files of a configuration are read.
//!
//! Owns the faults found so far. Does not know what is read.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::ServedConfig;
use super::folders::CanonicalFolders;
use super::problem::Problem;
use super::secret::Environment;
use super::tenant_variables::TenantVariables;

/// The environment, the configuration already served, and the faults so far.
pub(super) struct LoadContext<'e> {
    pub(super) environment: Environment<'e>,
    /// What a tenant of the registry may use of the environment; `None` while files are read.
    pub(super) tenant_variables: Option<&'e TenantVariables>,
    pub(super) served: Option<&'e ServedConfig<'e>>,
    folders: CanonicalFolders,
    problems: RefCell<Vec<Problem>>,
}

impl<'e> LoadContext<'e> {
    pub(super) fn new(environment: Environment<'e>, served: Option<&'e ServedConfig<'e>>) -> Self {
        let (folders, problems) = (CanonicalFolders::default(), RefCell::default());
        Self { environment, tenant_variables: None, served, folders, problems }
    }

    /// The context in which a tenant of the registry is read.
    pub(super) fn of_registry(environment: Environment<'e>, variables: &'e TenantVariables) -> Self {
        Self { tenant_variables: Some(variables), ..Self::new(environment, None) }
    }

    /// The context of what is in no file.
    pub(super) fn empty() -> LoadContext<'static> {
        LoadContext::new(&|_| None, None)
    }

    pub(super) fn report(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(super) fn take_problems(&self) -> Vec<Problem> {
        self.problems.take()
    }

    /// A path that is equal for two paths of the same file.
    pub(super) fn identity(&self, path: &Path) -> PathBuf {
        self.folders.identity(path)
    }
}
