//! The texts of the statements of a search.

use super::covered_forms::CoveredForms;
use super::*;
use crate::store::FormReach;
use crate::store::filter::{Keyword, Status, Term};

fn ids(count: i64) -> Vec<i64> {
    (1..=count).collect()
}

/// A filter for each list, with `values` values.
fn filters(values: i64) -> Vec<SubmissionFilter> {
    let none = SubmissionFilter::default;
    let answers = || (0..values).map(|answer| answer.to_string()).collect();
    let term = |element: i64, answers| Term { element: Some(element), answers };
    let statuses = Status::ALL.iter().copied().cycle().take(usize::try_from(values).unwrap()).collect();
    vec![
        SubmissionFilter { forms: ids(values), ..none() },
        SubmissionFilter { forms: ids(values), sort_by: SortBy::CreatedAt, ..none() },
        SubmissionFilter { statuses, ..none() },
        SubmissionFilter { submitters: ids(values), ..none() },
        SubmissionFilter { pending: ids(values), ..none() },
        SubmissionFilter { participants: ids(values), ..none() },
        SubmissionFilter { labels: ids(values), ..none() },
        SubmissionFilter { shared_labels: ids(values), ..none() },
        SubmissionFilter { flows: ids(values), ..none() },
        SubmissionFilter { terms: vec![term(1, answers())], ..none() },
        SubmissionFilter { terms: (1..=values).map(|element| term(element, vec!["a".to_owned()])).collect(), ..none() },
    ]
}

/// A filter of a caller who reaches all.
fn unresolved(filter: &SubmissionFilter) -> ResolvedFilter<'_> {
    let wanted = if filter.forms.is_empty() { FormReach::All } else { FormReach::of(filter.forms.clone()) };
    ResolvedFilter::unresolved(filter, wanted)
}

#[test]
fn the_text_of_a_statement_does_not_grow_with_the_values_of_a_filter() {
    let page = PageRequest { number: 1.try_into().unwrap(), size: 20 };
    for dialect in [Dialect::Postgres, Dialect::Sqlite] {
        let text_with = |resolved: &ResolvedFilter<'_>, plan| {
            let sql = select_page_with_total(CountedSearch::of(resolved).as_ref(), resolved, plan, page.into());
            match dialect {
                Dialect::Postgres => sql.into_postgres().unwrap().0,
                Dialect::Sqlite => sql.into_sqlite().unwrap().0,
            }
        };
        let text = |filter: &SubmissionFilter, plan| text_with(&unresolved(filter), plan);
        for (few, many) in filters(3).iter().zip(&filters(3000)).filter(|(few, _)| !few.forms.is_empty()) {
            let listed = |filter| {
                let forms = CoveredForms::Listed(SubmissionFilter::clone(filter).forms.into());
                text_with(&ResolvedFilter { forms, ..unresolved(filter) }, SearchPlan::ByPlanner)
            };
            assert_eq!(listed(few), listed(many));
            assert_ne!(listed(few), text(few, SearchPlan::ByPlanner));
        }
        for (mut few, mut many) in filters(3).into_iter().zip(filters(3000)) {
            assert_eq!(text(&few, SearchPlan::ByPlanner), text(&many, SearchPlan::ByPlanner));
            (few.search, many.search) = (Keyword::new("word"), Keyword::new(&"word".repeat(1000)));
            let lengths = [&few, &many].map(|filter| text(filter, SearchPlan::CheaperSide(dialect)).len());
            assert!(lengths[1] < 2 * lengths[0], "{lengths:?} for {few:?}");
        }
    }
}
