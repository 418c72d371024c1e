//! The values of one column in a row group.
//!
//! Only values that exist take memory, so a form with a thousand fields, of which most are empty, still fills a row group.
//! What Parquet calls levels (which rows have a value, and where lists begin) is made from them when the column is
//! written.

use bytes::Bytes;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::writer::SerializedColumnWriter;

/// How many rows are handed to a column writer at once.
///
/// Larger: their levels take more memory. Smaller: more calls.
const BATCH: usize = 1024;

/// What a row without values has, and what surrounds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Null.
    Scalar,
    /// An empty text; null if the submission was deleted.
    Text,
    /// An empty list; null if the submission was deleted.
    List,
    /// As for a list, whose items are files; this is one of their details, which may be null.
    FileDetail,
}

impl Shape {
    /// The definition level of a value.
    fn value(self) -> i16 {
        match self {
            Self::Scalar | Self::Text => 1,
            Self::List => 2,
            Self::FileDetail => 3,
        }
    }

    /// That of a row without values.
    fn absent(self, is_deleted: bool) -> i16 {
        match self {
            Self::Scalar => 0,
            _ if is_deleted => 0,
            Self::Text | Self::List | Self::FileDetail => 1,
        }
    }
}

/// Values by row; `None` is a file without this detail.
type Values<T> = Vec<(u32, Option<T>)>;

/// One column of a row group.
#[derive(Debug)]
pub(super) struct Leaf {
    shape: Shape,
    values: LeafValues,
}

#[derive(Debug)]
enum LeafValues {
    /// The texts, and where each begins and ends.
    Text(Vec<u8>, Values<(u32, u32)>),
    Boolean(Values<bool>),
    Int32(Values<i32>),
    Int64(Values<i64>),
    Double(Values<f64>),
}

impl Leaf {
    pub(super) fn text(shape: Shape) -> Self {
        Self { shape, values: LeafValues::Text(Vec::new(), Vec::new()) }
    }

    pub(super) fn int64(shape: Shape) -> Self {
        Self { shape, values: LeafValues::Int64(Vec::new()) }
    }

    pub(super) fn boolean() -> Self {
        Self { shape: Shape::Scalar, values: LeafValues::Boolean(Vec::new()) }
    }

    pub(super) fn int32() -> Self {
        Self { shape: Shape::Scalar, values: LeafValues::Int32(Vec::new()) }
    }

    pub(super) fn double() -> Self {
        Self { shape: Shape::Scalar, values: LeafValues::Double(Vec::new()) }
    }

    /// Adds a text to a row, which is the last one so far. Returns how much memory it takes.
    pub(super) fn add_text(&mut self, row: u32, text: Option<&str>) -> usize {
        let LeafValues::Text(texts, values) = &mut self.values else { unreachable!("the column is of texts") };
        let position = |texts: &Vec<u8>| u32::try_from(texts.len());
        let start = position(texts).expect("a row group is shorter");
        texts.extend_from_slice(text.unwrap_or_default().as_bytes());
        let end = position(texts).expect("a row group is shorter");
        values.push((row, text.map(|_| (start, end))));
        text.map_or(0, str::len) + size_of::<(u32, Option<(u32, u32)>)>()
    }

    /// Adds a number to a row. Returns how much memory it takes.
    pub(super) fn add_int64(&mut self, row: u32, value: Option<i64>) -> usize {
        let LeafValues::Int64(values) = &mut self.values else { unreachable!("the column is of integers") };
        push(values, row, value)
    }

    /// Adds a date to a row. Returns how much memory it takes.
    pub(super) fn add_int32(&mut self, row: u32, value: i32) -> usize {
        let LeafValues::Int32(values) = &mut self.values else { unreachable!("the column is of dates") };
        push(values, row, Some(value))
    }

    /// Adds a number to a row. Returns how much memory it takes.
    pub(super) fn add_double(&mut self, row: u32, value: f64) -> usize {
        let LeafValues::Double(values) = &mut self.values else { unreachable!("the column is of numbers") };
        push(values, row, Some(value))
    }

    /// Adds a truth value to a row. Returns how much memory it takes.
    pub(super) fn add_boolean(&mut self, row: u32, value: bool) -> usize {
        let LeafValues::Boolean(values) = &mut self.values else { unreachable!("the column is of truth values") };
        push(values, row, Some(value))
    }

    /// The values, of which this keeps none.
    pub(super) fn take(&mut self) -> Self {
        let empty = match &self.values {
            LeafValues::Text(..) => LeafValues::Text(Vec::new(), Vec::new()),
            LeafValues::Boolean(_) => LeafValues::Boolean(Vec::new()),
            LeafValues::Int32(_) => LeafValues::Int32(Vec::new()),
            LeafValues::Int64(_) => LeafValues::Int64(Vec::new()),
            LeafValues::Double(_) => LeafValues::Double(Vec::new()),
        };
        Self { shape: self.shape, values: std::mem::replace(&mut self.values, empty) }
    }

    /// Writes the column of a row group. `deleted` has an entry for each row.
    pub(super) fn write(self, column: &mut SerializedColumnWriter<'_>, deleted: &[bool]) -> Result<()> {
        let shape = self.shape;
        match self.values {
            LeafValues::Text(texts, values) => {
                let texts = Bytes::from(texts);
                let text = |(start, end): (u32, u32)| ByteArray::from(texts.slice(start as usize..end as usize));
                let empty = ByteArray::from(Bytes::new());
                write::<ByteArrayType, _>(column, shape, &values, deleted, Some(&empty), text)
            }
            LeafValues::Boolean(values) => write::<BoolType, _>(column, shape, &values, deleted, None, |value| value),
            LeafValues::Int32(values) => write::<Int32Type, _>(column, shape, &values, deleted, None, |value| value),
            LeafValues::Int64(values) => write::<Int64Type, _>(column, shape, &values, deleted, None, |value| value),
            LeafValues::Double(values) => write::<DoubleType, _>(column, shape, &values, deleted, None, |value| value),
        }
    }
}

fn push<T>(values: &mut Values<T>, row: u32, value: Option<T>) -> usize {
    values.push((row, value));
    size_of::<(u32, Option<T>)>()
}

/// Writes values of any type. `of` makes them values of the column; `absent` is what [`Shape::Text`] has without one.
fn write<D: DataType, T: Copy>(
    column: &mut SerializedColumnWriter<'_>,
    shape: Shape,
    values: &[(u32, Option<T>)],
    deleted: &[bool],
    absent: Option<&D::T>,
    of: impl Fn(T) -> D::T,
) -> Result<()> {
    let column = column.typed::<D>();
    let (mut batch, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    let (mut row, mut values) = (0_u32, values.iter().peekable());
    for rows in deleted.chunks(BATCH) {
        batch.clear();
        definitions.clear();
        repetitions.clear();
        for is_deleted in rows {
            let before = definitions.len();
            while let Some((_, value)) = values.next_if(|(of, _)| *of == row) {
                repetitions.push(i16::from(definitions.len() > before));
                definitions.push(if value.is_some() { shape.value() } else { shape.value() - 1 });
                batch.extend(value.map(&of));
            }
            if definitions.len() == before {
                repetitions.push(0);
                definitions.push(shape.absent(*is_deleted));
                if shape == Shape::Text && !is_deleted {
                    batch.extend(absent.cloned());
                }
            }
            row += 1;
        }
        let repetitions = matches!(shape, Shape::List | Shape::FileDetail).then_some(&*repetitions);
        column.write_batch(&batch, Some(&definitions), repetitions)?;
    }
    Ok(())
}
