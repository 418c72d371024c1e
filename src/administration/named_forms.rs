//! Forms by their names, as pages show what tokens and webhooks are limited to.

use std::collections::{BTreeSet, HashMap};

use super::visit::Member;
use crate::shown_text::shown_name;
use crate::store::{FormReach, StoreError};

/// How many forms, or networks, a list names. Larger: one token fills a page. Smaller: a short list is cut.
const SHOWN: usize = 3;

/// The names of some forms.
#[derive(Default)]
pub(super) struct FormNames(HashMap<i64, String>);

/// A form of a limit.
pub(super) struct NamedForm {
    /// Its id, such as `for_1`.
    pub(super) id: String,
    /// Its name; `None` if there is no such form.
    pub(super) name: Option<String>,
}

impl NamedForm {
    /// Its name, or its id.
    pub(super) fn label(&self) -> &str {
        self.name.as_ref().unwrap_or(&self.id)
    }
}

impl FormNames {
    /// The names of forms, as far as they exist.
    pub(super) async fn of(forms: impl IntoIterator<Item = i64>, member: &Member<'_>) -> Result<Self, StoreError> {
        let forms: BTreeSet<i64> = forms.into_iter().collect();
        if forms.is_empty() {
            return Ok(Self::default());
        }
        let names = member.store.list_form_names(&forms.into_iter().collect::<Vec<_>>()).await?;
        Ok(Self(names.into_iter().map(|(id, name)| (id, shown_name(&name))).collect()))
    }

    /// The name of a form, or its id.
    pub(super) fn label(&self, form: i64) -> String {
        self.0.get(&form).cloned().unwrap_or_else(|| format!("for_{form}"))
    }

    /// The forms of a limit, in alphabetical order; none if there is no limit.
    pub(super) fn named(&self, reach: &FormReach) -> Vec<NamedForm> {
        let named = |&form: &i64| NamedForm { id: format!("for_{form}"), name: self.0.get(&form).cloned() };
        let mut forms: Vec<_> = reach.forms().unwrap_or_default().iter().map(named).collect();
        forms.sort_by_cached_key(|form| (form.name.is_none(), form.label().to_lowercase()));
        forms
    }
}

/// The first words of a list, and how many others there are: `Leave, Travel, Sick, +4`.
pub(super) fn in_short<T: ToString>(words: impl IntoIterator<Item = T>) -> String {
    let mut words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    if words.len() > SHOWN + 1 {
        let more = words.len() - SHOWN;
        words.truncate(SHOWN);
        words.push(format!("+{more}"));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut() {
        assert_eq!(in_short::<&str>([]), "");
        assert_eq!(in_short(["a", "b", "c", "d"]), "a, b, c, d");
        assert_eq!(in_short(1..=7), "1, 2, 3, +4");
    }

    #[test]
    fn forms_have_their_names_and_those_that_are_missing_come_last() {
        let names = FormNames(HashMap::from([(1, "travel".to_owned()), (3, "Leave".to_owned())]));
        let labels = |reach: &FormReach| {
            names.named(reach).iter().map(|form| format!("{} {}", form.id, form.label())).collect::<Vec<_>>()
        };
        assert_eq!(labels(&FormReach::of([1, 2, 3])), ["for_3 Leave", "for_1 travel", "for_2 for_2"]);
        assert_eq!(labels(&FormReach::All), [""; 0]);
        assert_eq!((names.label(1), names.label(2)), ("travel".to_owned(), "for_2".to_owned()));
    }
}
