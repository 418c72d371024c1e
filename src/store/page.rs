//! One page of a longer list.

use std::num::NonZeroU64;

/// Which page is asked for: counted from 1, of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The page's number.
    pub number: NonZeroU64,
    /// The most items that a page holds.
    pub size: u32,
}

impl PageRequest {
    /// How many items come before this page; so many that there are none, where the number is too large to multiply.
    pub(super) fn offset(self) -> i64 {
        let before = (self.number.get() - 1).saturating_mul(u64::from(self.size));
        i64::try_from(before).unwrap_or(i64::MAX)
    }
}

/// The items of one page, and how many there are on all of them.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// At most as many as were asked for.
    pub items: Vec<T>,
    /// The exact count over all pages.
    pub total: u64,
}
