//! Parquet files as the reader of the `parquet` crate sees them. Other programs read them in `tests/it/api/export`.

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::super::format::FormatKind;
use super::super::long::TooLong;
use super::super::made_up::{MadeUpForm, finish};
use super::MAX_ITEMS;

fn reader(file: Vec<u8>) -> SerializedFileReader<Bytes> {
    SerializedFileReader::new(Bytes::from(file)).unwrap()
}

/// Each row as text.
fn rows(file: Vec<u8>) -> Vec<String> {
    reader(file).get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect()
}

fn metadata(reader: &impl FileReader) -> Vec<(String, String)> {
    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    metadata.iter().map(|entry| (entry.key.clone(), entry.value.clone().unwrap())).collect()
}

/// What precedes the answers in each row.
const FACTS: &str =
    "status: \"pending\", created_at: 2024-05-01 12:00:00.500000 +00:00, updated_at: 2024-05-01 12:00:00.500000 +00:00";

const ALL_KINDS: [(&str, &str); 6] = [
    ("Text", "email"),
    ("Number", "number"),
    ("Date", "date"),
    ("Time", "time"),
    ("Choices", "checkbox"),
    ("Files", "file"),
];

#[test]
fn each_kind_has_its_text_and_its_value_and_null_if_the_text_does_not_parse() {
    let form = MadeUpForm::new(&ALL_KINDS);
    let mut format = form.begin(FormatKind::Parquet, |_| {});
    let files = r#"[{"name":"a,b.pdf","url":"https://x/a","size":7,"mime_type":"a/b"},{"url":"https://x/b","size":1.5,"name":9}]"#;
    form.submit(
        &mut *format,
        1,
        &[
            (0, "=1+1", None),
            (1, "-1.5", None),
            (2, "2024-02-29", None),
            (3, "09:30", None),
            (4, "a\nb\n", None),
            (5, "", Some(files)),
        ],
    );
    form.submit_texts(&mut *format, 2, &["", "1,5", "2023-02-29", "9:30", "", "https://x/none"]);
    let rows = rows(finish(&mut *format, 2));
    assert_eq!(
        rows,
        [
            format!(
                "{{id: \"sub_1\", {FACTS}, Text: \"=1+1\", Number: \"-1.5\", Number_value: -1.5E0, Date: \"2024-02-29\", \
                 Date_value: 2024-02-29, Time: \"09:30 CEST\", Time_value: 09:30:00.000000, Choices: \"a\nb\n\", \
                 Choices_value: [\"a\", \"b\"], Files: \"https://x/a,https://x/b\", Files_value: [{{name: \"a,b.pdf\", \
                 url: \"https://x/a\", mime_type: \"a/b\", size: 7}}, {{name: null, url: \"https://x/b\", mime_type: null, \
                 size: null}}]}}"
            ),
            format!(
                "{{id: \"sub_2\", {FACTS}, Text: \"\", Number: \"1,5\", Number_value: null, Date: \"2023-02-29\", \
                 Date_value: null, Time: \"9:30\", Time_value: null, Choices: \"\", Choices_value: [], \
                 Files: \"https://x/none\", Files_value: []}}"
            ),
        ]
    );
}

#[test]
fn a_deleted_submission_has_its_id_and_nothing_else() {
    let form = MadeUpForm::new(&ALL_KINDS);
    let mut format = form.begin(FormatKind::Parquet, |start| start.is_since = true);
    format.deletion(1).unwrap();
    form.submit_texts(&mut *format, 2, &["", "", "", "", "", ""]);
    let rows = rows(finish(&mut *format, 2));
    assert_eq!(
        rows,
        [
            "{id: \"sub_1\", status: null, created_at: null, updated_at: null, Text: null, Number: null, \
             Number_value: null, Date: null, Date_value: null, Time: null, Time_value: null, Choices: null, \
             Choices_value: null, Files: null, Files_value: null, deleted: true}"
                .to_owned(),
            format!(
                "{{id: \"sub_2\", {FACTS}, Text: \"\", Number: \"\", Number_value: null, Date: \"\", Date_value: null, \
                 Time: \"\", Time_value: null, Choices: \"\", Choices_value: [], Files: \"\", Files_value: [], deleted: false}}"
            ),
        ]
    );
}

#[test]
fn two_answers_of_children_are_one_text_and_no_number() {
    let form = MadeUpForm::new(&[("Amount", "number"), ("Currency", "select"), ("At", "time")]);
    let mut format = form.begin(FormatKind::Parquet, |_| {});
    let answers = [(0, "5", None), (1, "EUR", None), (2, "09:30", None)];
    form.submit(&mut *format, 1, &[answers, [(0, "7", None), (1, "USD", None), (2, "", None)]].concat());
    assert_eq!(
        rows(finish(&mut *format, 1)),
        [format!(
            "{{id: \"sub_1\", {FACTS}, Amount: \"5\n7\", Amount_value: null, Currency: \"EUR\nUSD\", \
             Currency_value: [\"EUR\", \"USD\"], At: \"09:30 CEST\n\", At_value: null}}"
        )]
    );
}

#[test]
fn a_file_of_many_row_groups_says_of_which_point_it_is() {
    let form = MadeUpForm::new(&[("Text", "text"), ("Choices", "checkbox")]);
    for groups in [0_u64, 1, 2, 14, 15, 16, 300] {
        let mut format = form.begin(FormatKind::Parquet, |_| {});
        let (mut file, mut expected) = (Vec::new(), Vec::new());
        for id in 0..groups * 2 {
            let choices = ["a", "b", "c"][..usize::try_from(id % 4).unwrap()].join("\n");
            form.submit_texts(&mut *format, 1, &[&format!("text {id}"), &choices]);
            expected.push((format!("Text: \"text {id}\""), format!("Choices: {choices:?}").replace("\\n", "\n")));
            if id % 2 == 1 {
                format.flush().unwrap();
                file.extend(format.take());
            }
        }
        file.extend(finish(&mut *format, groups * 2));
        let reader = reader(file.clone());
        assert_eq!(reader.num_row_groups() as u64, groups);
        assert_eq!(reader.metadata().file_metadata().num_rows(), i64::try_from(groups * 2).unwrap());
        let rows_there = (groups * 2).to_string();
        let expected_metadata = [("formgate.cursor", "cursor-7"), ("formgate.rows", &rows_there)];
        assert_eq!(metadata(&reader), expected_metadata.map(|(key, value)| (key.to_owned(), value.to_owned())));
        for (row, (text, choices)) in rows(file).iter().zip(&expected) {
            assert!(row.contains(text) && row.contains(choices), "{row}");
        }
    }
}

#[test]
fn a_row_group_is_bounded_by_its_bytes_and_empty_answers_take_none() {
    let fields: Vec<String> = (0..1000).map(|number| format!("Field {number}")).collect();
    let fields: Vec<(&str, &str)> = fields.iter().map(|name| (&**name, "text")).collect();
    let form = MadeUpForm::new(&fields);
    let long = "x".repeat(512 * 1024);
    let mut format = form.begin(FormatKind::Parquet, |_| {});
    for id in 0..1000 {
        form.submit(&mut *format, id, &[(7, "short", None)]);
    }
    let mut rows = 1000;
    while !format.is_full() {
        form.submit(&mut *format, rows, &[(999, &long, None)]);
        rows += 1;
    }
    assert_eq!(rows, 1004);
    format.flush().unwrap();
    assert!(!format.is_full());
    let reader = reader(finish(&mut *format, 1004));
    assert_eq!((reader.num_row_groups(), reader.metadata().file_metadata().num_rows()), (1, 1004));
}

#[test]
fn a_row_with_more_choices_and_files_than_the_crate_takes_at_once_ends_the_file() {
    let form = MadeUpForm::new(&[("Choices", "checkbox"), ("Files", "file")]);
    let mut format = form.begin(FormatKind::Parquet, |_| {});
    let [most, too_many] = [MAX_ITEMS, MAX_ITEMS + 1].map(|count| "a\n".repeat(count));
    form.submit(&mut *format, 1, &[(0, &most, None)]);
    for choices in [&too_many, &"a\n".repeat(80 * MAX_ITEMS)] {
        let mut format = form.begin(FormatKind::Parquet, |_| {});
        let refused = form.try_submit(&mut *format, 2, &[(0, choices, None)]).unwrap_err();
        assert!(refused.is::<TooLong>(), "{refused}");
    }
    let file = r#"[{"name": "a", "url": "https://a.example/a", "mime_type": "image/png", "size": 1}]"#;
    let refused = form.try_submit(&mut *format, 2, &[(0, &most, None), (1, "", Some(file))]).unwrap_err();
    assert!(refused.is::<TooLong>(), "{refused}");
}
