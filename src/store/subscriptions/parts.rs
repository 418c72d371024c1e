//! Parts of statements by functions that still push, under the names that they get. Then this file goes.

use crate::store::changes::{LogMark, write_is_in_log};
use crate::store::search::write_with_sub_forms;
use crate::store::statement::{Dialect, Sql, sql};

fn written(write: impl Fn(&mut Sql)) -> Sql {
    let [postgres, sqlite] = [Dialect::Postgres, Dialect::Sqlite].map(|dialect| {
        let mut sql = Sql::new(dialect);
        write(&mut sql);
        sql
    });
    sql!("{pg: {+postgres} | lite: {+sqlite}}", postgres, sqlite)
}

pub(super) fn stamp_of(number: Sql) -> Sql {
    sql!("coalesce((SELECT h.stamp FROM change_stamps h WHERE h.seq >= {+number} ORDER BY h.seq LIMIT 1), 0)", number)
}

pub(super) fn is_in_log(mark: LogMark) -> Sql {
    written(|sql| write_is_in_log(sql, mark))
}

pub(super) fn with_sub_forms(forms: &[i64]) -> Sql {
    written(|sql| write_with_sub_forms(sql, forms))
}
