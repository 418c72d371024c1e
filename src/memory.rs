//! How many bytes the bodies and answers of requests may hold at once, per tenant and per node.
//!
//! Owns both counters and their order. Large data is reserved before it is built. The [`MemoryPermit`] travels with
//! it, and is released when the last byte is dropped; for an answer, when that was handed to the socket. Small data
//! is not counted; the caps on requests in flight bound it. Knows no HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;

use crate::metrics::GateMetrics;

/// How many bytes of rows a request may read before they are reserved.
///
/// Larger: requests in flight hold more uncounted memory. Smaller: ordinary pages of submissions pay for counting.
const UNCOUNTED_ROWS: usize = 64 * 1024;

/// The step in which rows are reserved, in bytes.
///
/// Larger: a request reserves more than it reads. Smaller: the counters are written more often.
const STEP: usize = 1024 * 1024;

/// The memory of a node.
#[derive(Debug)]
pub struct Memory {
    most: usize,
    most_per_tenant: usize,
    metrics: GateMetrics,
}

/// What one tenant has reserved.
#[derive(Debug, Default)]
pub struct TenantMemory(CachePadded<AtomicUsize>);

/// The tenant or the node has no room for a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory is left for the request")]
pub struct MemorySpent;

impl Memory {
    /// A node whose requests may hold `most` bytes, of which those of one tenant may hold `most_per_tenant`.
    #[must_use]
    pub fn new(most: usize, most_per_tenant: usize, metrics: GateMetrics) -> Self {
        Self { most, most_per_tenant, metrics }
    }

    fn refused(&self, reason: &str) -> MemorySpent {
        self.metrics.refused.with_label_values(&[reason]).inc();
        MemorySpent
    }
}

/// One tenant's access to the node's memory.
#[derive(Clone, Debug)]
pub struct MemoryShare {
    memory: Arc<Memory>,
    tenant: Arc<TenantMemory>,
}

impl MemoryShare {
    /// A tenant's share of a node's memory.
    #[must_use]
    pub fn new(memory: &Arc<Memory>, tenant: &Arc<TenantMemory>) -> Self {
        Self { memory: Arc::clone(memory), tenant: Arc::clone(tenant) }
    }

    /// A share without a limit.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        let memory = Memory::new(usize::MAX, usize::MAX, crate::metrics::Metrics::default().gate);
        Self { memory: Arc::new(memory), tenant: Arc::default() }
    }

    /// Reserves bytes until the permit is dropped.
    ///
    /// # Errors
    /// [`MemorySpent`].
    pub fn reserve(&self, bytes: usize) -> Result<MemoryPermit, MemorySpent> {
        let mut permit = MemoryPermit { share: self.clone(), bytes: 0 };
        permit.resize(bytes)?;
        Ok(permit)
    }

    /// Checks whether there is room for bytes now. Reserves none.
    ///
    /// # Errors
    /// [`MemorySpent`].
    pub fn check_room(&self, bytes: usize) -> Result<(), MemorySpent> {
        let Self { memory, tenant } = self;
        let has_room = |used: &AtomicUsize, most: usize| {
            used.load(Ordering::Acquire).checked_add(bytes).is_some_and(|sum| sum <= most)
        };
        if !has_room(&tenant.0, memory.most_per_tenant) {
            return Err(memory.refused("tenant_memory"));
        }
        if !has_room(&memory.metrics.memory_reserved, memory.most) {
            return Err(memory.refused("memory"));
        }
        Ok(())
    }

    /// How many bytes can be reserved now.
    #[cfg(test)]
    fn free(&self) -> usize {
        let free = |used: &AtomicUsize, most: usize| most.saturating_sub(used.load(Ordering::Acquire));
        free(&self.tenant.0, self.memory.most_per_tenant)
            .min(free(&self.memory.metrics.memory_reserved, self.memory.most))
    }
}

/// Reserved bytes.
#[derive(Debug)]
pub struct MemoryPermit {
    share: MemoryShare,
    bytes: usize,
}

impl MemoryPermit {
    /// How many bytes are reserved.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more bytes, or releases some, until the permit covers `bytes`.
    ///
    /// # Errors
    /// [`MemorySpent`]; the permit is then unchanged.
    pub fn resize(&mut self, bytes: usize) -> Result<(), MemorySpent> {
        let MemoryShare { memory, tenant } = &self.share;
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) {
            // The tenant's counter first: a tenant at its limit does not touch the counter that all tenants write to.
            if !add(&tenant.0, more, memory.most_per_tenant) {
                return Err(memory.refused("tenant_memory"));
            }
            if !add(&memory.metrics.memory_reserved, more, memory.most) {
                tenant.0.fetch_sub(more, Ordering::AcqRel);
                return Err(memory.refused("memory"));
            }
            self.bytes = bytes;
        } else {
            self.shrink_to(bytes);
        }
        Ok(())
    }

    /// Releases all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if less > 0 {
            self.share.memory.metrics.memory_reserved.fetch_sub(less, Ordering::AcqRel);
            self.share.tenant.0.fetch_sub(less, Ordering::AcqRel);
            self.bytes -= less;
        }
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

fn add(used: &AtomicUsize, more: usize, most: usize) -> bool {
    let add = |used: usize| used.checked_add(more).filter(|sum| *sum <= most);
    used.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
}

/// The rows that a request has read and that its response does not hold yet. They are counted where they are read, by a
/// store that was told so, and reserved once there are many. Clones are the same.
#[derive(Clone, Debug)]
pub struct RowMemory(Arc<Mutex<Rows>>);

#[derive(Debug)]
struct Rows {
    share: MemoryShare,
    uncounted: usize,
    bytes: usize,
    permit: Option<MemoryPermit>,
}

impl RowMemory {
    /// That of a new request.
    #[must_use]
    pub fn new(share: MemoryShare) -> Self {
        Self(Arc::new(Mutex::new(Rows { share, uncounted: UNCOUNTED_ROWS, bytes: 0, permit: None })))
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes of rows that the request keeps.
    ///
    /// # Errors
    /// [`MemorySpent`].
    pub fn hold(&self, bytes: usize) -> Result<(), MemorySpent> {
        let mut rows = self.rows();
        rows.bytes += bytes;
        if rows.bytes <= rows.uncounted {
            return Ok(());
        }
        let wanted = rows.bytes.next_multiple_of(STEP);
        match &mut rows.permit {
            Some(permit) if permit.bytes() >= wanted => Ok(()),
            Some(permit) => permit.resize(wanted),
            None => {
                rows.permit = Some(rows.share.reserve(wanted)?);
                Ok(())
            }
        }
    }

    /// Reserves bytes for something else that the request holds.
    ///
    /// # Errors
    /// [`MemorySpent`].
    pub fn reserve(&self, bytes: usize) -> Result<MemoryPermit, MemorySpent> {
        self.rows().share.reserve(bytes)
    }

    /// Takes the reservation of the rows, once the response was built from them.
    #[must_use]
    pub fn take(&self) -> Option<MemoryPermit> {
        self.rows().permit.take()
    }

    /// Releases what was counted: those rows are in a response of its own reservation, or gone.
    pub fn release(&self) {
        let mut rows = self.rows();
        (rows.bytes, rows.permit) = (0, None);
    }

    /// Begins a part of the response, for which all rows before are released. It may read `uncounted` bytes of rows, which
    /// are reserved already or too few to be counted.
    pub fn begin_part(&self, uncounted: usize) {
        let mut rows = self.rows();
        (rows.uncounted, rows.bytes, rows.permit) = (uncounted, 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn node(most: usize, most_per_tenant: usize) -> Arc<Memory> {
        Arc::new(Memory::new(most, most_per_tenant, Metrics::default().gate))
    }

    #[test]
    fn a_tenant_can_reserve_its_share_and_the_node_the_sum() {
        let memory = node(10, 6);
        let [acme, globex] = [(); 2].map(|()| MemoryShare::new(&memory, &Arc::default()));
        let mut first = acme.reserve(4).unwrap();
        assert_eq!(acme.reserve(3).err(), Some(MemorySpent));
        assert_eq!((acme.check_room(3), acme.check_room(2)), (Err(MemorySpent), Ok(())));
        assert_eq!((globex.check_room(7), globex.check_room(6)), (Err(MemorySpent), Ok(())));
        let second = globex.reserve(6).unwrap();
        assert_eq!(first.resize(5), Err(MemorySpent));
        assert_eq!((first.bytes(), acme.free(), globex.free()), (4, 0, 0));
        drop(second);
        first.resize(6).unwrap();
        assert_eq!((acme.free(), globex.free()), (0, 4));
        first.shrink_to(1);
        drop(first);
        assert_eq!((acme.free(), globex.free()), (6, 6));
    }

    #[test]
    fn rows_are_reserved_once_there_are_many_and_go_over_to_the_answer() {
        let memory = node(3 * STEP, 3 * STEP);
        let share = MemoryShare::new(&memory, &Arc::default());
        let reserved = || memory.metrics.memory_reserved.load(Ordering::Acquire);
        let rows = RowMemory::new(share);
        rows.hold(UNCOUNTED_ROWS).unwrap();
        assert_eq!(reserved(), 0);
        rows.hold(1).unwrap();
        assert_eq!(reserved(), STEP);
        rows.clone().hold(STEP).unwrap();
        assert_eq!(reserved(), 2 * STEP);
        assert_eq!(rows.hold(2 * STEP), Err(MemorySpent));
        let permit = rows.take();
        assert_eq!(reserved(), 2 * STEP);
        drop(permit);
        assert_eq!(reserved(), 0);
        rows.begin_part(STEP);
        rows.hold(STEP).unwrap();
        assert_eq!(reserved(), 0);
        rows.hold(1).unwrap();
        assert_eq!(reserved(), 2 * STEP);
        rows.release();
        assert_eq!(reserved(), 0);
        rows.hold(STEP).unwrap();
        assert_eq!(reserved(), 0, "the part goes on");
        rows.begin_part(0);
        rows.hold(1).unwrap();
        assert_eq!(reserved(), STEP);
        rows.begin_part(0);
        assert_eq!(reserved(), 0);
    }
}
