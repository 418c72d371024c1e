//! Parquet: rows are collected to a row group of bounded size, which is then written column by column.
//!
//! Each field has a column with its exact text and, if its kind has a type, one with the value, which is null where the
//! text does not parse. This uses the column writers of the `parquet` crate without Arrow: these few types need none of
//! it, and it would keep an encoder for each column in memory, of a thousand at once. [`footer`] keeps what the end of the
//! file says of each row group compressed, as the crate's own file writer does not.
//!
//! All columns are optional. A deleted submission has null in all of them but `id` and `deleted`.

mod footer;
mod leaf;
mod schema;

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use jiff::tz::TimeZone;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedRowGroupWriter, TrackedWrite};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor};

use self::footer::{Footer, FooterParts};
use self::leaf::Leaf;
use super::cells::{Cell, ColumnsOfFields, TableRow, choices, parse_date, parse_number, parse_time};
use super::columns::{Columns, Fact, FieldColumn, ValueKind};
use super::format::{ExportFormat, FormatStart};
use super::long::TooLong;
use crate::reply::PartsError;
use crate::store::{Field, Submission};

/// How many bytes of values a row group has before it is written.
///
/// Larger: a table takes more memory, up to about four times as much for a single wide column. Smaller: files are larger, and
/// readers fetch more pieces.
const GROUP_BYTES: usize = 2 * 1024 * 1024;

/// How many rows a row group has at most.
///
/// Larger: fewer cores read a file at once. Smaller: files of few columns are larger.
const GROUP_ROWS: usize = 122_880;

/// How many choices and files a row may have in its lists: the crate takes the values of a row at once.
///
/// Larger: an export takes more memory, about a hundred bytes for each. Smaller: more submissions can only be exported in other
/// formats.
const MAX_ITEMS: usize = 100_000;

/// How many bytes a Parquet file takes while it is written: a row group as values and then as bytes of the file, what
/// encodes a column, and the footer so far.
pub(super) const MEMORY: usize = 4 * GROUP_BYTES;

/// A Parquet file that is being written.
pub(super) struct ParquetFormat {
    columns: Columns,
    fields: ColumnsOfFields,
    zone: TimeZone,
    schema: SchemaDescPtr,
    properties: WriterPropertiesPtr,
    /// The columns of the row group, in the order of the schema.
    leaves: Vec<Leaf>,
    /// Which rows of the row group are deleted submissions.
    deleted: Vec<bool>,
    /// How much memory the values of the row group take.
    bytes: usize,
    file: TrackedWrite<Vec<u8>>,
    /// The footer so far; `None` behind the last row.
    footer: Option<Footer>,
    /// What follows the row groups.
    end: FooterParts,
}

impl ParquetFormat {
    pub(super) fn new(start: FormatStart) -> Result<Self, PartsError> {
        let columns = Columns::new(&start.selection, &start.columns, start.is_since);
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema::of(&columns)?)));
        let leaves = schema::leaves(&columns);
        // Statistics serve readers that look for a time; of texts they would only make the footer longer.
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::None)
            .set_column_statistics_enabled(Fact::CreatedAt.name().into(), EnabledStatistics::Chunk)
            .set_column_statistics_enabled(Fact::UpdatedAt.name().into(), EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .build();
        let mut file = TrackedWrite::new(Vec::new());
        file.write_all(footer::MAGIC)?;
        file.flush()?;
        let properties = Arc::new(properties);
        let footer = Footer::new(Arc::clone(&schema), Arc::clone(&properties), start.cursor)?;
        let (fields, zone, deleted) = (ColumnsOfFields::default(), start.zone, Vec::new());
        Ok(Self {
            columns,
            fields,
            zone,
            schema,
            properties,
            leaves,
            deleted,
            bytes: 0,
            file,
            footer: Some(footer),
            end: FooterParts::default(),
        })
    }

    /// Adds a row. Returns whether it has few enough choices and files.
    fn push(&mut self, row: &TableRow<'_>) -> bool {
        let number = u32::try_from(self.deleted.len()).expect("a row group has fewer rows");
        let mut leaves = Leaves { leaves: self.leaves.iter_mut(), row: number, bytes: size_of::<bool>(), items: 0 };
        for fact in &self.columns.facts {
            match (fact, &row.facts) {
                (Fact::Id, _) => leaves.text(Some(&row.id)),
                (Fact::Status, facts) => leaves.text(facts.as_ref().map(|facts| facts.status)),
                (Fact::CreatedAt, facts) => leaves.int64(facts.as_ref().map(|facts| facts.created_at.as_microsecond())),
                (Fact::UpdatedAt, facts) => leaves.int64(facts.as_ref().map(|facts| facts.updated_at.as_microsecond())),
            }
        }
        for (field, cell) in self.columns.fields.iter().zip(&row.cells) {
            leaves.cell(field, cell);
            if leaves.items > MAX_ITEMS {
                return false;
            }
        }
        if self.columns.has_deleted {
            leaves.boolean(row.facts.is_none());
        }
        self.bytes += leaves.bytes;
        self.deleted.push(row.facts.is_none());
        true
    }
}

impl ExportFormat for ParquetFormat {
    fn set_fields(&mut self, fields: &[Field<'_>]) {
        self.fields = ColumnsOfFields::of(&self.columns, fields);
    }

    fn submission(&mut self, submission: &Submission<'_>) -> Result<(), PartsError> {
        let row = TableRow::of(&self.columns, &self.fields, submission, &self.zone);
        if self.push(&row) { Ok(()) } else { Err(TooLong(submission.id).into()) }
    }

    fn deletion(&mut self, id: i64) -> Result<(), PartsError> {
        self.push(&TableRow::deleted(&self.columns, id));
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.bytes >= GROUP_BYTES || self.deleted.len() >= GROUP_ROWS
    }

    /// Writes the row group.
    fn flush(&mut self) -> Result<(), PartsError> {
        let Some(footer) = self.footer.as_mut().filter(|_| !self.deleted.is_empty()) else { return Ok(()) };
        let (schema, properties) = (Arc::clone(&self.schema), Arc::clone(&self.properties));
        let mut group = SerializedRowGroupWriter::new(schema, properties, &mut self.file, footer.groups(), None);
        for leaf in &mut self.leaves {
            let mut column = group.next_column()?.expect("each leaf is a column of the schema");
            // What is written is released, so that memory holds it either as values or as bytes of the file.
            leaf.take().write(&mut column, &self.deleted)?;
            column.close()?;
        }
        footer.add(Arc::unwrap_or_clone(group.close()?))?;
        self.file.flush()?;
        self.deleted.clear();
        self.bytes = 0;
        Ok(())
    }

    fn end(&mut self, _: u64) -> Result<(), PartsError> {
        self.flush()?;
        if let Some(footer) = self.footer.take() {
            self.end = footer.finish()?;
        }
        Ok(())
    }

    fn complete_bytes(&self) -> usize {
        self.file.inner().len() + self.end.bytes()
    }

    fn take(&mut self) -> Bytes {
        let mut bytes = std::mem::take(self.file.inner_mut());
        self.end.read(&mut bytes);
        bytes.into()
    }
}

/// The columns of a row, one after another.
struct Leaves<'l> {
    leaves: std::slice::IterMut<'l, Leaf>,
    row: u32,
    /// How much memory the row takes.
    bytes: usize,
    /// How many choices and files it has.
    items: usize,
}

impl Leaves<'_> {
    fn next(&mut self) -> &mut Leaf {
        self.leaves.next().expect("each column of the table has its leaves")
    }

    /// Adds to the next column.
    fn text(&mut self, text: Option<&str>) {
        let (row, leaf) = (self.row, self.next());
        self.bytes += text.map_or(0, |text| leaf.add_text(row, Some(text)));
    }

    fn int64(&mut self, value: Option<i64>) {
        let (row, leaf) = (self.row, self.next());
        self.bytes += value.map_or(0, |value| leaf.add_int64(row, Some(value)));
    }

    fn boolean(&mut self, value: bool) {
        let (row, leaf) = (self.row, self.next());
        self.bytes += leaf.add_boolean(row, value);
    }

    /// Adds the text of a cell to the next column, and what it stands for to those behind it. An empty text takes no
    /// memory.
    fn cell(&mut self, field: &FieldColumn, cell: &Cell<'_>) {
        self.text(Some(&*cell.text).filter(|text| !text.is_empty()));
        let row = self.row;
        match field.kind {
            ValueKind::Text => {}
            ValueKind::Number => {
                let leaf = self.next();
                self.bytes += parse_number(&cell.stored).map_or(0, |value| leaf.add_double(row, value));
            }
            ValueKind::Date => {
                let leaf = self.next();
                self.bytes += parse_date(&cell.stored).map_or(0, |value| leaf.add_int32(row, value));
            }
            ValueKind::Time => self.int64(parse_time(&cell.stored)),
            ValueKind::Choices => {
                let leaf = self.next();
                let (mut bytes, mut items) = (0, 0);
                for choice in choices(&cell.text).take(MAX_ITEMS + 1) {
                    bytes += leaf.add_text(row, Some(choice));
                    items += 1;
                }
                self.bytes += bytes;
                self.items += items;
            }
            ValueKind::Files => {
                self.items += cell.files.len();
                for text in schema::FILE_TEXTS {
                    let leaf = self.next();
                    self.bytes += cell.files.iter().map(|file| leaf.add_text(row, text(file).as_str())).sum::<usize>();
                }
                let leaf = self.next();
                self.bytes += cell.files.iter().map(|file| leaf.add_int64(row, file.size.as_i64())).sum::<usize>();
            }
        }
    }
}

#[cfg(test)]
mod tests;
