//! Statements by pushed fragments, until the last of them is a template.

use std::time::Duration;

use super::argument::Argument;
use super::page::PageScan;
use super::sql::{Dialect, Sql, sql};
use super::texts::Texts;

impl Sql {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let mut sql = Self::default();
        sql.dialect = Some(dialect);
        sql
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect.expect("it was made for a connection")
    }

    pub(crate) fn force_custom_plan(&mut self) -> &mut Self {
        *self = std::mem::take(self).with_custom_plan();
        self
    }

    pub(crate) fn push(&mut self, text: &'static str) -> &mut Self {
        self.append(Self::text(text))
    }

    pub(crate) fn push_either(&mut self, postgres: &'static str, sqlite: &'static str) -> &mut Self {
        let [postgres, sqlite] = [postgres, sqlite].map(Self::text);
        self.append(sql!("{pg: {+postgres} | lite: {+sqlite}}", postgres, sqlite))
    }

    pub(crate) fn push_each(&mut self, [postgres, sqlite]: [&'static str; 2]) -> &mut Self {
        self.push_either(postgres, sqlite)
    }

    pub(crate) fn bind(&mut self, value: impl Into<Argument>) -> &mut Self {
        let value: Argument = value.into();
        self.append(sql!("{value}", value))
    }

    pub(crate) fn limit(&mut self, scan: &PageScan) -> &mut Self {
        self.append(sql!("{page scan}", scan))
    }

    pub(crate) fn in_ids(&mut self, ids: &[i64]) -> &mut Self {
        self.append(sql!(" {in ids}", ids))
    }

    pub(crate) fn not_in_ids(&mut self, ids: &[i64]) -> &mut Self {
        self.append(sql!(" {not in ids}", ids))
    }

    pub(crate) fn push_instant(&mut self, column: &'static str) -> &mut Self {
        self.push_either("greatest('0001-01-01 00:00:00+00', least(", "max(-62135596800000000, min(").push(column);
        self.push_either(", '9999-12-30 22:00:00+00'))", ", 253402207200000000))")
    }

    pub(crate) fn in_ids_with_generic_plan(&mut self, ids: &[i64]) -> &mut Self {
        self.append(sql!(" {in unsized ids}", ids))
    }

    pub(crate) fn in_texts(&mut self, texts: impl IntoIterator<Item: AsRef<str>>) -> &mut Self {
        self.append(sql!(" {in texts}", texts = texts.into_iter().collect::<Texts>()))
    }

    pub(crate) fn push_now_plus(&mut self, later: Duration) -> &mut Self {
        self.append(sql!("{clock + later}", later))
    }

    pub(crate) fn push_now_minus(&mut self, earlier: Duration) -> &mut Self {
        self.append(sql!("{clock - earlier}", earlier))
    }

    pub(crate) fn push_has_passed(&mut self, column: &'static str, longest: Duration) -> &mut Self {
        self.push("(").push(column).push(" IS NULL OR ").push(column).push(" <= ").push_now_plus(Duration::ZERO);
        self.push(" OR ").push(column).push(" > ").push_now_plus(longest).push(")")
    }

    pub(crate) fn push_rows(&mut self, rows: String, columns: &'static [(&'static str, &'static str)]) -> &mut Self {
        self.append(Self::rows(rows, columns))
    }

    pub(in crate::store) fn push_records(&mut self, fields: &[&'static str]) -> &mut Self {
        self.push_either("SELECT ROW (", "SELECT json_group_array(json_array(");
        for (at, field) in fields.iter().enumerate() {
            self.push(if at == 0 { "" } else { ", " });
            self.push_either("array_agg(", "").push(field).push_either(")", "");
        }
        self.push_either(")", "))")
    }
}
