//! Pages of a longer list, and the direction and offset with which a page is read.
//!
//! A page beyond the middle of a list is read backwards from the end ([`PageScan`]).

use std::num::NonZeroU64;

use jiff::Timestamp;

/// The direction of the order. Ids break ties in the same direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortDirection {
    /// Oldest first.
    Ascending,
    /// Newest first.
    #[default]
    Descending,
}

impl SortDirection {
    /// The opposite direction.
    pub(super) fn reversed(self) -> Self {
        match self {
            Self::Ascending => Self::Descending,
            Self::Descending => Self::Ascending,
        }
    }
}

/// The requested page: counted from 1, of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The page's number.
    pub number: NonZeroU64,
    /// The most items that a page holds.
    pub size: u32,
}

impl PageRequest {
    /// How many items precede this page. Saturates, which then is an empty page.
    pub(in crate::store) fn offset(self) -> i64 {
        let before = (self.number.get() - 1).saturating_mul(u64::from(self.size));
        i64::try_from(before).unwrap_or(i64::MAX)
    }
}

/// The items of one page, and how many there are on all pages.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// At most [`PageRequest::size`].
    pub items: Vec<T>,
    /// The exact count over all pages.
    pub total: u64,
}

/// How a page is read: from which end of the list, and at which offset from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct PageScan {
    /// The order in which it is read: that of the page, or its reverse.
    pub(in crate::store) direction: SortDirection,
    /// How many items are skipped.
    pub(in crate::store) offset: i64,
    /// How many are read.
    pub(in crate::store) length: i64,
    /// Where to start instead of the end: items before this instant (descending), or from it on (ascending).
    pub(in crate::store) start_at: Option<Timestamp>,
}

impl PageScan {
    /// Reads a page in its own order, from the start of the list.
    pub(in crate::store) fn forward(page: PageRequest, direction: SortDirection) -> Self {
        Self { direction, offset: page.offset(), length: i64::from(page.size), start_at: None }
    }

    /// Reads a page of a list of `total` items from the nearer end. None if the page is empty.
    pub(in crate::store) fn from_nearest_end(page: PageRequest, total: i64, direction: SortDirection) -> Option<Self> {
        let forward = Self::forward(page, direction);
        let length = forward.length.min(total - forward.offset);
        let behind = total - forward.offset - length;
        if length <= 0 {
            None
        } else if behind < forward.offset {
            Some(Self { direction: direction.reversed(), offset: behind, length, start_at: None })
        } else {
            Some(Self { length, ..forward })
        }
    }

    /// The same page together with all skipped items.
    pub(in crate::store) fn with_skipped(&self) -> Self {
        Self { offset: 0, length: self.offset.saturating_add(self.length), ..*self }
    }

    /// Starts after whole skipped days, which have `items` items. `last` is the last of these days, counted from
    /// 1970-01-01 in UTC.
    pub(in crate::store) fn skip_days(&mut self, items: i64, last: Option<i64>) {
        let first_instant = match self.direction {
            SortDirection::Descending => last,
            SortDirection::Ascending => last.map(|day| day + 1),
        };
        let instant = first_instant.and_then(|day| Timestamp::from_second(day.saturating_mul(86_400)).ok());
        if instant.is_some() {
            self.offset -= items;
            self.start_at = instant;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64) -> PageRequest {
        PageRequest { number: number.try_into().unwrap(), size: 20 }
    }

    #[test]
    fn a_page_is_read_from_the_nearer_end() {
        use SortDirection::{Ascending, Descending};
        let read = |number, total| {
            let scan = PageScan::from_nearest_end(page(number), total, Descending)?;
            Some((scan.direction, scan.offset, scan.length))
        };

        assert_eq!(read(1, 5), Some((Descending, 0, 5)));
        assert_eq!(read(2, 45), Some((Ascending, 5, 20)));
        assert_eq!(read(2, 60), Some((Descending, 20, 20)));
        assert_eq!(read(3, 45), Some((Ascending, 0, 5)));
        assert_eq!(read(3, 40), None);
        assert_eq!(read(u64::MAX, 40), None);
        assert_eq!(read(1, 0), None);
    }

    #[test]
    fn whole_days_are_skipped_by_starting_at_an_instant() {
        let mut scan = PageScan::from_nearest_end(page(200), 10_000, SortDirection::Descending).unwrap();
        scan.skip_days(3_900, Some(19_000));
        assert_eq!((scan.offset, scan.start_at), (80, Some("2022-01-08T00:00:00Z".parse().unwrap())));
        let mut scan = PageScan::from_nearest_end(page(200), 10_000, SortDirection::Ascending).unwrap();
        scan.skip_days(3_900, Some(19_000));
        assert_eq!((scan.offset, scan.start_at), (80, Some("2022-01-09T00:00:00Z".parse().unwrap())));
        let mut scan = PageScan::from_nearest_end(page(200), 10_000, SortDirection::Ascending).unwrap();
        scan.skip_days(0, None);
        assert_eq!((scan.offset, scan.start_at), (3_980, None));
    }
}
