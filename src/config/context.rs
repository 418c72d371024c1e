//! The context in which the files of a configuration are read.
//!
//! Owns the faults found so far, and reading many items on several threads. Does not know what is read.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::ServedConfig;
use super::folders::CanonicalFolders;
use super::problem::Problem;
use super::secret::Environment;
use super::tenant_variables::TenantVariables;

/// The context in which the files of a configuration are read: the environment, the configuration already served, and
/// the faults so far. Each reading thread has its own.
pub(super) struct LoadContext<'e> {
    pub(super) environment: Environment<'e>,
    /// What a tenant of the registry may use of the environment; `None` while files are read.
    pub(super) tenant_variables: Option<&'e TenantVariables>,
    served: Option<&'e ServedConfig<'e>>,
    threads: usize,
    folders: CanonicalFolders,
    problems: RefCell<Vec<Problem>>,
    /// The keys that finished tables were asked for.
    known: RefCell<Vec<&'static str>>,
}

impl<'e> LoadContext<'e> {
    pub(super) fn new(environment: Environment<'e>, served: Option<&'e ServedConfig<'e>>, threads: usize) -> Self {
        let (folders, problems, known) = (CanonicalFolders::default(), RefCell::default(), RefCell::default());
        Self { environment, tenant_variables: None, served, threads, folders, problems, known }
    }

    /// The context in which a tenant of the registry is read.
    pub(super) fn of_registry(environment: Environment<'e>, variables: &'e TenantVariables) -> Self {
        Self { tenant_variables: Some(variables), ..Self::new(environment, None, 1) }
    }

    /// A new context whose faults can be discarded.
    pub(super) fn fork(&self) -> Self {
        Self { tenant_variables: self.tenant_variables, ..Self::new(self.environment, self.served, self.threads) }
    }

    /// Moves the faults of another context into this one.
    pub(super) fn absorb(&self, other: &Self) {
        self.problems.borrow_mut().extend(other.take_problems());
    }

    pub(super) fn report(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    /// How many problems were reported, and not taken yet.
    pub(super) fn faults(&self) -> usize {
        self.problems.borrow().len()
    }

    pub(super) fn take_problems(&self) -> Vec<Problem> {
        self.problems.take()
    }

    pub(super) fn add_known_keys(&self, keys: &[&'static str]) {
        self.known.borrow_mut().extend(keys);
    }

    pub(super) fn take_known_keys(&self) -> Vec<&'static str> {
        self.known.take()
    }

    pub(super) fn served(&self) -> Option<&'e ServedConfig<'e>> {
        self.served
    }

    /// A path that is equal for two paths of the same file.
    pub(super) fn identity(&self, path: &Path) -> PathBuf {
        self.folders.identity(path)
    }

    /// Reads items, on several threads if there are many, and passes the results to `keep` in order.
    ///
    /// Works in batches, and the thread that keeps results frees none: an allocator reuses freed memory for the thread
    /// that freed it, so kept values would be scattered over the gaps, and very many tenants would take a third more
    /// memory.
    pub(super) fn read_in_batches<T: Sync, R: Send>(
        &self,
        items: &[T],
        read: impl Fn(&LoadContext<'_>, &T) -> R + Sync,
        mut keep: impl FnMut(&mut R),
    ) {
        if self.threads <= 1 || items.len() < BATCH {
            for some in items.chunks(BATCH) {
                let mut done: Vec<R> = some.iter().map(|item| read(self, item)).collect();
                done.iter_mut().for_each(&mut keep);
            }
            return;
        }
        let (environment, served, tenant_variables, read) =
            (self.environment, self.served, self.tenant_variables, &read);
        let mut done = Vec::new();
        for some in items.chunks(BATCH * self.threads).chain([&[][..]]) {
            done = std::thread::scope(|scope| {
                let part = |items| {
                    scope.spawn(move || {
                        let own = LoadContext { tenant_variables, ..LoadContext::new(environment, served, 1) };
                        let done: Vec<R> = <[T]>::iter(items).map(|item| read(&own, item)).collect();
                        (done, own.take_problems())
                    })
                };
                let parts: Vec<_> = some.chunks(some.len().div_ceil(self.threads).max(1)).map(part).collect();
                // Keep the previous batch while the next one is read.
                done.iter_mut().for_each(&mut keep);
                scope.spawn(move || drop(done));
                let mut done = Vec::with_capacity(some.len());
                for part in parts {
                    let (some, problems) = part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    done.extend(some);
                    self.problems.borrow_mut().extend(problems);
                }
                done
            });
        }
    }
}

/// How many tables or files a thread reads per batch. Larger: more is in memory at a time. Smaller: starting threads
/// costs as much as reading.
const BATCH: usize = 512;
