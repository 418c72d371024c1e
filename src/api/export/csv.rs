//! CSV by RFC 4180, which spreadsheets can open without harm.
//!
//! A spreadsheet takes a text that begins like a formula for one, and may run it: such a text gets a leading `'`. Numbers
//! do not, nor does anything in a column of numbers, whose readers expect none.

use bytes::Bytes;
use jiff::tz::TimeZone;

use super::cells::{ColumnsOfFields, TableRow, is_number};
use super::columns::{Columns, DELETED, Fact, ValueKind};
use super::format::{ExportFormat, FormatStart};
use crate::instant::Rfc3339Micros;
use crate::reply::PartsError;
use crate::store::{Field, Submission};

/// What Excel takes for UTF-8. Without it, Excel reads an encoding of the country.
const MARK: &str = "\u{feff}";

/// A CSV file that is being written.
pub(super) struct CsvFormat {
    columns: Columns,
    fields: ColumnsOfFields,
    zone: TimeZone,
    /// Leave texts that begin like a formula.
    is_raw: bool,
    lines: csv::Writer<Vec<u8>>,
}

impl CsvFormat {
    /// Writes the heading.
    pub(super) fn new(start: FormatStart) -> Self {
        let columns = Columns::new(&start.selection, &start.columns, start.is_since);
        let mark = if start.excel { MARK } else { "" };
        let mut format = Self {
            columns,
            fields: ColumnsOfFields::default(),
            zone: start.zone,
            is_raw: start.raw,
            lines: writer(mark.into()),
        };
        for fact in &format.columns.facts {
            write(&mut format.lines, fact.name());
        }
        for field in &format.columns.fields {
            write_text(&mut format.lines, &field.name, start.raw);
        }
        if format.columns.has_deleted {
            write(&mut format.lines, DELETED);
        }
        end(&mut format.lines);
        format
    }

    fn write_row(&mut self, row: &TableRow<'_>) {
        let lines = &mut self.lines;
        for fact in &self.columns.facts {
            match (fact, &row.facts) {
                (Fact::Id, _) => write(lines, &row.id),
                (_, None) => write(lines, ""),
                (Fact::Status, Some(facts)) => write_text(lines, facts.status, self.is_raw),
                (Fact::CreatedAt, Some(facts)) => write(lines, &Rfc3339Micros(facts.created_at).to_string()),
                (Fact::UpdatedAt, Some(facts)) => write(lines, &Rfc3339Micros(facts.updated_at).to_string()),
            }
        }
        for (field, cell) in self.columns.fields.iter().zip(&row.cells) {
            write_text(lines, &cell.text, self.is_raw || field.kind == ValueKind::Number);
        }
        if self.columns.has_deleted {
            write(lines, if row.facts.is_none() { "true" } else { "false" });
        }
        end(lines);
    }
}

impl ExportFormat for CsvFormat {
    fn set_fields(&mut self, fields: &[Field<'_>]) {
        self.fields = ColumnsOfFields::of(&self.columns, fields);
    }

    fn submission(&mut self, submission: &Submission<'_>) -> Result<(), PartsError> {
        let row = TableRow::of(&self.columns, &self.fields, submission, &self.zone);
        self.write_row(&row);
        Ok(())
    }

    fn deletion(&mut self, id: i64) -> Result<(), PartsError> {
        self.write_row(&TableRow::deleted(&self.columns, id));
        Ok(())
    }

    fn end(&mut self, _: u64) -> Result<(), PartsError> {
        Ok(())
    }

    fn complete_bytes(&self) -> usize {
        self.lines.get_ref().len()
    }

    fn take(&mut self) -> Bytes {
        let lines = std::mem::replace(&mut self.lines, writer(Vec::new()));
        lines.into_inner().expect("memory takes it").into()
    }
}

fn writer(start: Vec<u8>) -> csv::Writer<Vec<u8>> {
    csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(start)
}

fn write(lines: &mut csv::Writer<Vec<u8>>, text: &str) {
    lines.write_field(text).expect("memory takes it");
}

/// Writes a text that a user typed.
fn write_text(lines: &mut csv::Writer<Vec<u8>>, text: &str, is_raw: bool) {
    if !is_raw && text.starts_with(['=', '+', '-', '@', '\t', '\r']) && !is_number(text) {
        write(lines, &format!("'{text}"));
    } else {
        write(lines, text);
    }
}

fn end(lines: &mut csv::Writer<Vec<u8>>) {
    lines.write_record(None::<&[u8]>).expect("all rows have as many cells");
    lines.flush().expect("memory takes it");
}

#[cfg(test)]
mod tests {
    use super::super::format::FormatKind;
    use super::super::made_up::{MadeUpForm, finish};
    use super::*;

    /// What precedes the answers in each line.
    const FACTS: &str = "pending,2024-05-01T12:00:00.500000Z,2024-05-01T12:00:00.500000Z";

    fn written(form: &MadeUpForm, change: impl FnOnce(&mut FormatStart), texts: &[&str]) -> String {
        let mut format = form.begin(FormatKind::Csv, change);
        form.submit_texts(&mut *format, 1, texts);
        String::from_utf8(finish(&mut *format, 1)).unwrap()
    }

    #[test]
    fn a_row_has_the_facts_and_then_an_answer_for_each_field() {
        let form = MadeUpForm::new(&[("Why", "text"), ("Said \"no\"", "textarea"), ("At", "time")]);
        assert_eq!(
            written(&form, |_| {}, &["a, b", "\"x\"\ny\r\nz", "09:30"]),
            format!(
                "id,status,created_at,updated_at,Why,\"Said \"\"no\"\"\",At\r\nsub_1,{FACTS},\"a, b\",\"\"\"x\"\"\ny\r\nz\",09:30 CEST\r\n"
            )
        );
    }

    #[test]
    fn a_text_that_begins_like_a_formula_gets_a_mark_and_a_number_does_not() {
        let (names, kinds) = (["=a", "+b", "-c", "@d", "\te", "\rf", "-1", "g", "h"], "text");
        let form = MadeUpForm::new(&names.map(|name| (name, kinds)));
        let texts = ["=1+1", "+49 30", "-5", "@x", "\tx", "\rx", "-", "x=1", "-1,5"];
        let heading = "'=a,'+b,'-c,'@d,'\te,\"'\rf\",-1,g,h";
        let marked = "'=1+1,'+49 30,-5,'@x,'\tx,\"'\rx\",'-,x=1,\"'-1,5\"";
        let head = "id,status,created_at,updated_at";
        let line = |heading: &str, row: &str| format!("{head},{heading}\r\nsub_1,{FACTS},{row}\r\n");
        assert_eq!(written(&form, |_| {}, &texts), line(heading, marked));
        assert_eq!(written(&form, |start| start.excel = true, &texts), format!("\u{feff}{}", line(heading, marked)));
        let (heading, raw) = (heading.replace('\'', ""), marked.replace('\'', ""));
        assert_eq!(written(&form, |start| start.raw = true, &texts), line(&heading, &raw));
    }

    #[test]
    fn a_column_of_numbers_is_as_stored() {
        let form = MadeUpForm::new(&[("=n", "number")]);
        let written = written(&form, |_| {}, &["-5 km"]);
        assert_eq!(written, format!("id,status,created_at,updated_at,'=n\r\nsub_1,{FACTS},-5 km\r\n"));
    }

    #[test]
    fn answers_of_children_are_lines_that_belong_together() {
        let form = MadeUpForm::new(&[("City", "text"), ("Day", "date"), ("Note", "text"), ("Map", "file")]);
        let mut format = form.begin(FormatKind::Csv, |start| start.is_since = true);
        let file = r#"[{"name":"a","url":"https://x/a"},{"url":"https://x/b"}]"#;
        let answers = [
            (0, "Łódź", None),
            (1, "", None),
            (2, "", None),
            (3, "", Some(file)),
            (0, "", None),
            (1, "2024-05-01", None),
            (2, "", None),
            (3, "", None),
        ];
        form.submit(&mut *format, 1, &answers);
        format.deletion(2).unwrap();
        assert_eq!(
            String::from_utf8(finish(&mut *format, 2)).unwrap(),
            format!(
                "id,status,created_at,updated_at,City,Day,Note,Map,deleted\r\nsub_1,{FACTS},\"Łódź\n\",\"\n2024-05-01\",,\"https://x/a,https://x/b\n\",false\r\nsub_2,,,,,,,,true\r\n"
            )
        );
    }

    #[test]
    fn a_form_without_fields_has_the_facts() {
        let form = MadeUpForm::new(&[]);
        assert_eq!(written(&form, |_| {}, &[]), format!("id,status,created_at,updated_at\r\nsub_1,{FACTS}\r\n"));
    }
}
