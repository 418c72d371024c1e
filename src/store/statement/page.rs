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

/// The place of an item in an order by an instant, and by ids where instants are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The instant.
    pub at: Timestamp,
    /// The id.
    pub id: i64,
}

/// What is read of a list that has pages and cursors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageStart {
    /// A page by its number.
    Number(PageRequest),
    /// As many items behind a position as `size`, or from the beginning.
    Behind {
        /// The last item that was read before.
        position: Option<Position>,
        /// The most items.
        size: u32,
    },
}

impl PageStart {
    /// How many items are skipped.
    pub(in crate::store) fn offset(self) -> i64 {
        match self {
            Self::Number(page) => page.offset(),
            Self::Behind { .. } => 0,
        }
    }

    /// How it is read in the order of the list.
    pub(in crate::store) fn scan(self, direction: SortDirection) -> PageScan {
        match self {
            Self::Number(page) => PageScan::forward(page, direction),
            Self::Behind { position, size } => PageScan::behind(position, size, direction),
        }
    }
}

impl From<PageRequest> for PageStart {
    fn from(page: PageRequest) -> Self {
        Self::Number(page)
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
    /// The items behind this position are read, instead of all. One with the least id is in front of all of its instant.
    pub(in crate::store) behind: Option<Position>,
}

impl PageScan {
    /// Reads a page in its own order, from the start of the list.
    pub(in crate::store) fn forward(page: PageRequest, direction: SortDirection) -> Self {
        Self { direction, offset: page.offset(), length: i64::from(page.size), behind: None }
    }

    /// Reads what is behind a position, or from the start of the list, and one item more: it shows whether there is more.
    pub(in crate::store) fn behind(position: Option<Position>, size: u32, direction: SortDirection) -> Self {
        Self { direction, offset: 0, length: i64::from(size) + 1, behind: position }
    }

    /// Reads a page of a list of `total` items from the nearer end. None if the page is empty.
    pub(in crate::store) fn from_nearest_end(page: PageRequest, total: i64, direction: SortDirection) -> Option<Self> {
        let forward = Self::forward(page, direction);
        let length = forward.length.min(total - forward.offset);
        let behind = total - forward.offset - length;
        if length <= 0 {
            None
        } else if behind < forward.offset {
            Some(Self { direction: direction.reversed(), offset: behind, length, behind: None })
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
        if let Some(at) = instant {
            self.offset -= items;
            // Descending, what is behind it is before the instant.
            self.behind = Some(Position { at, id: i64::MIN });
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
        let day = |text: &str| Some(Position { at: text.parse().unwrap(), id: i64::MIN });
        let mut scan = PageScan::from_nearest_end(page(200), 10_000, SortDirection::Descending).unwrap();
        scan.skip_days(3_900, Some(19_000));
        assert_eq!((scan.offset, scan.behind), (80, day("2022-01-08T00:00:00Z")));
        let mut scan = PageScan::from_nearest_end(page(200), 10_000, SortDirection::Ascending).unwrap();
        scan.skip_days(3_900, Some(19_000));
        assert_eq!((scan.offset, scan.behind), (80, day("2022-01-09T00:00:00Z")));
        let mut scan = PageScan::from_nearest_end(page(200), 10_000, SortDirection::Ascending).unwrap();
        scan.skip_days(0, None);
        assert_eq!((scan.offset, scan.behind), (3_980, None));
    }
}
