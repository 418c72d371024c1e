//! The ids and texts that the records of a batch touch, which have to be looked up before the batch is checked.

use std::collections::HashSet;

use super::batch::Batch;
use super::record::{FormRecord, GroupRecord, Record, SubmissionRecord};
use crate::store::mailbox::{key, spellings};
use crate::store::statement::fold;

#[derive(Debug, Default)]
pub(super) struct Touched<'b> {
    /// Users that records refer to; likewise labels, groups and flow steps.
    pub(super) users: HashSet<i64>,
    pub(super) labels: HashSet<i64>,
    pub(super) groups: HashSet<i64>,
    pub(super) flow_steps: HashSet<i64>,
    /// Forms whose elements matter.
    pub(super) forms: HashSet<i64>,
    /// Elements that forms list.
    pub(super) elements: HashSet<i64>,
    pub(super) submissions: HashSet<i64>,
    pub(super) parents: HashSet<i64>,
    /// Submissions that get a parent.
    pub(super) below: HashSet<i64>,
    pub(super) written_users: Vec<i64>,
    pub(super) emails: Vec<String>,
    pub(super) written_groups: Vec<i64>,
    pub(super) external_ids: Vec<String>,
    pub(super) written_forms: Vec<&'b FormRecord>,
}

impl<'b> Touched<'b> {
    pub(super) fn of(batch: &'b Batch) -> Self {
        let mut touched = Self::default();
        for record in batch.records() {
            match record {
                Record::User(user) => {
                    touched.written_users.push(user.id);
                    let (key, folded) = (key(&user.email), fold(&user.email));
                    if *key != folded {
                        touched.emails.push(folded);
                    }
                    touched.emails.extend(spellings(&key));
                }
                Record::Label(_) => {}
                Record::Form(form) => touched.add_form(form),
                Record::Group(group) => touched.add_group(group),
                Record::FlowStep(step) => touched.groups.extend(&step.groups),
                Record::Submission(submission) => touched.add_submission(submission),
            }
        }
        touched
    }

    fn add_form(&mut self, form: &'b FormRecord) {
        self.forms.insert(form.id);
        self.elements.extend(form.elements.iter().map(|element| element.id));
        self.written_forms.push(form);
    }

    fn add_group(&mut self, group: &GroupRecord) {
        // The built-in group must not get an id that is taken.
        self.groups.insert(group.id);
        self.users.extend(&group.members);
        self.written_groups.push(group.id);
        self.external_ids.extend(group.external_id.clone());
    }

    fn add_submission(&mut self, submission: &SubmissionRecord) {
        self.submissions.insert(submission.id);
        if let Some(parent) = submission.parent_id {
            self.parents.insert(parent);
            self.below.insert(submission.id);
        }
        self.forms.insert(submission.form_id);
        self.labels.extend(submission.labels.iter().chain(&submission.shared_labels));
        self.users.extend(submission.pending_on.iter().chain(&submission.participants));
        self.users.extend(submission.submitter_id);
        self.flow_steps.extend(&submission.flow_steps);
    }
}
