//! Many short texts in one piece of memory.
//!
//! A group's members are three texts each. As `String`s, those of a body of very short members would take more than the
//! memory that is reserved for serving it (`memory`): 24 bytes each and an allocation, for members of 16 bytes. A
//! list of `String`s also allocates and frees each of them.

use serde::{Serialize, Serializer};

/// Texts in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextList {
    all: String,
    /// Where each ends in `all`; it begins where the one before it ends. Four bytes each, since texts may be as short;
    /// a body that fills them is sixteen times as long as the largest that is taken.
    ends: Vec<u32>,
}

impl TextList {
    /// An empty column with room for `texts` texts of `bytes` bytes in all. Unused room takes no physical memory.
    #[must_use]
    pub fn with_capacity(texts: usize, bytes: usize) -> Self {
        Self { all: String::with_capacity(bytes), ends: Vec::with_capacity(texts) }
    }

    /// Adds one.
    pub fn push(&mut self, text: &str) {
        self.all.push_str(text);
        self.ends.push(u32::try_from(self.all.len()).expect("no body has 4 GiB"));
    }

    /// Removes the last one.
    pub fn pop(&mut self) {
        self.ends.pop();
        self.all.truncate(self.ends.last().map_or(0, |end| *end as usize));
    }

    /// One by its place.
    ///
    /// # Panics
    /// Where there are not as many.
    #[must_use]
    pub fn get(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.all[start..self.ends[at] as usize]
    }

    /// The last one.
    #[must_use]
    pub fn last(&self) -> Option<&str> {
        self.len().checked_sub(1).map(|at| self.get(at))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// How many bytes they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.all.len() + size_of_val(self.ends.as_slice())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Each in turn.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| &self.all[std::mem::replace(&mut start, end as usize)..end as usize])
    }
}

impl<T: AsRef<str>> Extend<T> for TextList {
    fn extend<I: IntoIterator<Item = T>>(&mut self, texts: I) {
        texts.into_iter().for_each(|text| self.push(text.as_ref()));
    }
}

impl<T: AsRef<str>> FromIterator<T> for TextList {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut all = Self::default();
        all.extend(texts);
        all
    }
}

impl Serialize for TextList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_out_as_they_were_added_the_empty_ones_too() {
        for texts in [&[][..], &[""], &["a"], &["", "ünï", "", "b\"", ""]] {
            let kept: TextList = texts.iter().collect();
            assert_eq!(kept.iter().collect::<Vec<_>>(), texts);
            assert_eq!((kept.len(), kept.is_empty()), (texts.len(), texts.is_empty()));
            assert_eq!(serde_json::to_string(&kept).unwrap(), serde_json::to_string(texts).unwrap());
        }
    }
}
