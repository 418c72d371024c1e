//! How a session that tenants share gets the schema of one of them.

use std::sync::Arc;

/// The statement that makes a transaction resolve names in one schema only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SchemaSetting(Arc<str>);

/// Precedes the name of the schema.
const SET_PATH: &str = "SET LOCAL search_path TO ";

impl SchemaSetting {
    pub(super) fn new(schema: &str) -> Self {
        Self(format!("{SET_PATH}\"{}\"", schema.replace('"', "\"\"")).into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a table in the schema.
    pub(super) fn qualify(&self, table: &str) -> String {
        format!("{}.{table}", &self.0[SET_PATH.len()..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_qualified_by_the_schema_as_it_is_set() {
        let setting = SchemaSetting::new("Globex \"AG\"");
        assert_eq!(setting.as_str(), r#"SET LOCAL search_path TO "Globex ""AG""""#);
        assert_eq!(setting.qualify("intake"), r#""Globex ""AG""".intake"#);
    }
}
