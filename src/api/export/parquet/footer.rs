//! The footer of a Parquet file: the schema, where the columns of each row group are, and of which point the file is.
//!
//! The crate's own file writer keeps about half a kilobyte for each column of each row group, which is unbounded: 700 MB for
//! a million submissions of a form with a thousand fields. Here they are kept as the footer will have them, compressed to
//! some twenty bytes. The crate writes only whole footers, so this cuts a row group out of the footer of a file that has
//! only that one. In Thrift's compact protocol, a footer reads:
//!
//! ```text
//! head: version, schema │ rows: varint │ 0x19, length of the list │ row groups │ tail: metadata, the program, sort orders
//! ```

use std::io::{self, Cursor, Read, Write};

use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData};
use parquet::file::properties::WriterPropertiesPtr;
use parquet::schema::types::SchemaDescPtr;
use zstd::stream::{read, write};

/// What a file begins and ends with.
pub(super) const MAGIC: &[u8] = b"PAR1";

/// What follows the footer: its length in four bytes, and [`MAGIC`].
const BEHIND: usize = 8;

/// The field of the row groups, a list; behind it, the type of its items, a structure, and in the upper four bits their
/// number, or [`MANY`] if it follows as a varint.
const ROW_GROUPS: u8 = 0x19;
const STRUCTURE: u8 = 0x0c;
const MANY: u8 = 15;

/// The keys of the file's metadata.
const CURSOR: &str = "formgate.cursor";
const ROWS: &str = "formgate.rows";

/// The footer so far.
pub(super) struct Footer {
    schema: SchemaDescPtr,
    properties: WriterPropertiesPtr,
    cursor: String,
    /// The length of the head.
    head: usize,
    groups: u32,
    rows: u64,
    /// The row groups, compressed, and the number of their bytes.
    written: write::Encoder<'static, Vec<u8>>,
    bytes: usize,
}

impl Footer {
    pub(super) fn new(schema: SchemaDescPtr, properties: WriterPropertiesPtr, cursor: String) -> io::Result<Self> {
        let written = write::Encoder::new(Vec::new(), 1)?;
        Ok(Self { schema, properties, cursor, head: 0, groups: 0, rows: 0, written, bytes: 0 })
    }

    /// How many row groups there are.
    pub(super) fn groups(&self) -> i32 {
        i32::try_from(self.groups).expect("as many would take petabytes")
    }

    /// Adds a row group, which has rows.
    pub(super) fn add(&mut self, group: RowGroupMetaData) -> Result<()> {
        let rows = u64::try_from(group.num_rows()).expect("a number of rows is positive");
        let (empty, whole) = (self.of_groups(Vec::new(), 0)?, self.of_groups(vec![group], 0)?);
        // The first difference is the number of rows.
        self.head = empty.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        let start = self.head + varint(rows << 1).len() + 2;
        let tail = empty.len() - tail_of(&empty, self.head)?;
        let (group, rest) =
            whole.get(start..).and_then(|rest| rest.split_at_checked(rest.len() - tail)).ok_or_else(odd)?;
        if rest != &empty[empty.len() - tail..] {
            return Err(odd());
        }
        self.written.write_all(group)?;
        self.bytes += group.len();
        self.rows += rows;
        self.groups += 1;
        Ok(())
    }

    /// The whole footer, and what follows it.
    pub(super) fn finish(self) -> Result<FooterParts> {
        let empty = self.of_groups(Vec::new(), self.rows)?;
        let (head, mut tail) = match self.groups {
            0 => (Vec::new(), empty),
            groups => {
                let tail = empty[tail_of(&empty, self.head)?..].to_vec();
                let mut head = empty[..self.head].to_vec();
                head.extend(varint(self.rows << 1));
                head.push(ROW_GROUPS);
                match u8::try_from(groups) {
                    Ok(few) if few < MANY => head.push(few << 4 | STRUCTURE),
                    _ => {
                        head.push(MANY << 4 | STRUCTURE);
                        head.extend(varint(groups.into()));
                    }
                }
                (head, tail)
            }
        };
        let length = head.len() + self.bytes + tail.len();
        let written = u32::try_from(length);
        let written = written.map_err(|_| ParquetError::General("the footer is longer than 4 GiB".to_owned()))?;
        tail.extend(written.to_le_bytes());
        tail.extend(MAGIC);
        let groups = read::Decoder::new(Cursor::new(self.written.finish()?))?;
        let reader = Box::new(Cursor::new(head).chain(groups).chain(Cursor::new(tail)));
        Ok(FooterParts { reader: Some(reader), bytes: length + BEHIND })
    }

    /// The footer of a file with these row groups.
    fn of_groups(&self, groups: Vec<RowGroupMetaData>, rows: u64) -> Result<Vec<u8>> {
        let metadata = [(CURSOR, self.cursor.clone()), (ROWS, rows.to_string())];
        let metadata = metadata.map(|(key, value)| KeyValue::new(key.to_owned(), value)).to_vec();
        let program = Some(self.properties.created_by().to_owned());
        let version = self.properties.writer_version().as_num();
        let file = FileMetaData::new(version, 0, program, Some(metadata), self.schema.clone(), None);
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &ParquetMetaData::new(file, groups)).finish()?;
        footer.truncate(footer.len().saturating_sub(BEHIND));
        Ok(footer)
    }
}

/// How many bytes of a footer are read at once.
///
/// Larger: a form of thousands of fields takes more memory at the end. Smaller: more parts.
const PART_BYTES: usize = 256 * 1024;

/// A footer that is being read, in parts.
#[derive(Default)]
pub(super) struct FooterParts {
    reader: Option<Box<dyn Read + Send>>,
    bytes: usize,
}

impl FooterParts {
    /// How many bytes are left.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends the next bytes; none if none are left.
    pub(super) fn read(&mut self, to: &mut Vec<u8>) {
        let Some(reader) = &mut self.reader else { return };
        let wanted = self.bytes.min(PART_BYTES);
        let read = reader.take(wanted as u64).read_to_end(to);
        assert_eq!(read.expect("memory is read"), wanted, "the footer is as long as it says");
        self.bytes -= wanted;
    }
}

/// Where the tail of a footer without row groups begins.
fn tail_of(empty: &[u8], head: usize) -> Result<usize> {
    let is_known = empty.get(head..head + 3) == Some(&[0, ROW_GROUPS, STRUCTURE]);
    if is_known { Ok(head + 3) } else { Err(odd()) }
}

fn odd() -> ParquetError {
    ParquetError::General("a footer is not written as expected".to_owned())
}

/// A number in Thrift's compact protocol.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}
