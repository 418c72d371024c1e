//! The schema of a Parquet file, and the leaves that its columns have.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::errors::Result;
use parquet::schema::types::{Type, TypePtr};

use serde_json::Value;

use super::super::super::submissions::FileJson;
use super::super::columns::{Columns, DELETED, Fact, ValueKind};
use super::leaf::{Leaf, Shape};

/// The texts of a file, in the order of the schema; the size follows them.
pub(super) const FILE_TEXTS: [fn(&FileJson) -> &Value; 3] =
    [|file| &file.name, |file| &file.url, |file| &file.mime_type];

/// The schema of a table.
pub(super) fn of(columns: &Columns) -> Result<Type> {
    let mut fields = Vec::new();
    for fact in &columns.facts {
        fields.push(match fact {
            Fact::Id | Fact::Status => text(fact.name(), Repetition::OPTIONAL)?,
            Fact::CreatedAt | Fact::UpdatedAt => {
                let kind = LogicalType::timestamp(true, TimeUnit::MICROS);
                primitive(fact.name(), PhysicalType::INT64, Some(kind), Repetition::OPTIONAL)?
            }
        });
    }
    for field in &columns.fields {
        fields.push(text(&field.name, Repetition::OPTIONAL)?);
        let name = &field.typed_name;
        let scalar = |physical, logical| primitive(name, physical, logical, Repetition::OPTIONAL);
        fields.extend(match field.kind {
            ValueKind::Text => None,
            ValueKind::Number => Some(scalar(PhysicalType::DOUBLE, None)?),
            ValueKind::Date => Some(scalar(PhysicalType::INT32, Some(LogicalType::Date))?),
            ValueKind::Time => Some(scalar(PhysicalType::INT64, Some(LogicalType::time(false, TimeUnit::MICROS)))?),
            ValueKind::Choices => Some(list(name, text("element", Repetition::REQUIRED)?)?),
            ValueKind::Files => Some(list(name, file()?)?),
        });
    }
    if columns.has_deleted {
        fields.push(primitive(DELETED, PhysicalType::BOOLEAN, None, Repetition::OPTIONAL)?);
    }
    Type::group_type_builder("submissions").with_fields(fields).build()
}

fn primitive(
    name: &str,
    physical: PhysicalType,
    logical: Option<LogicalType>,
    repetition: Repetition,
) -> Result<TypePtr> {
    let builder = Type::primitive_type_builder(name, physical).with_logical_type(logical);
    builder.with_repetition(repetition).build().map(Arc::new)
}

fn text(name: &str, repetition: Repetition) -> Result<TypePtr> {
    primitive(name, PhysicalType::BYTE_ARRAY, Some(LogicalType::String), repetition)
}

/// A list in the three levels that the format prescribes.
fn list(name: &str, element: TypePtr) -> Result<TypePtr> {
    let items = Type::group_type_builder("list").with_repetition(Repetition::REPEATED).with_fields(vec![element]);
    let list = Type::group_type_builder(name).with_repetition(Repetition::OPTIONAL);
    let list = list.with_logical_type(Some(LogicalType::List)).with_fields(vec![Arc::new(items.build()?)]);
    list.build().map(Arc::new)
}

fn file() -> Result<TypePtr> {
    let text = |name| text(name, Repetition::OPTIONAL);
    let size = primitive("size", PhysicalType::INT64, None, Repetition::OPTIONAL)?;
    let fields = vec![text("name")?, text("url")?, text("mime_type")?, size];
    let file = Type::group_type_builder("element").with_repetition(Repetition::REQUIRED).with_fields(fields);
    file.build().map(Arc::new)
}

/// The leaves of a schema, in its order.
pub(super) fn leaves(columns: &Columns) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for fact in &columns.facts {
        leaves.push(match fact {
            Fact::Id | Fact::Status => Leaf::text(Shape::Scalar),
            Fact::CreatedAt | Fact::UpdatedAt => Leaf::int64(Shape::Scalar),
        });
    }
    for field in &columns.fields {
        leaves.push(Leaf::text(Shape::Text));
        match field.kind {
            ValueKind::Text => {}
            ValueKind::Number => leaves.push(Leaf::double()),
            ValueKind::Date => leaves.push(Leaf::int32()),
            ValueKind::Time => leaves.push(Leaf::int64(Shape::Scalar)),
            ValueKind::Choices => leaves.push(Leaf::text(Shape::List)),
            ValueKind::Files => {
                leaves.extend(FILE_TEXTS.iter().map(|_| Leaf::text(Shape::FileDetail)));
                leaves.push(Leaf::int64(Shape::FileDetail));
            }
        }
    }
    if columns.has_deleted {
        leaves.push(Leaf::boolean());
    }
    leaves
}
