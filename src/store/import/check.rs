//! The rules that a record must satisfy against the database: references exist, and unique values are unique.
//!
//! Every rule that a constraint or a trigger of the schema would enforce is checked here first, so that no statement
//! fails because of the input and a fault names its key. A refused record does not change the [`ImportState`].

use std::borrow::Cow;
use std::collections::HashSet;

use super::record::{FlowStepRecord, FormRecord, GroupRecord, LabelRecord, Record, SubmissionRecord, UserRecord};
use super::state::{FormFacts, ImportState, SubmissionFacts};
use crate::store::mailbox::key;

/// The name of the built-in group, which has every user as a member.
pub(in crate::store) const ALL_USERS: &str = "All Users";

/// One step of the path to a value in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathStep {
    Key(Cow<'static, str>),
    Index(usize),
}

/// Why a record can't be loaded, and which of its values is at fault.
#[derive(Clone, Debug)]
pub(crate) struct RecordFault {
    pub(crate) path: Vec<PathStep>,
    pub(crate) message: String,
}

impl RecordFault {
    fn at(key: &'static str, message: String) -> Self {
        Self { path: vec![PathStep::Key(Cow::Borrowed(key))], message }
    }

    fn in_list(key: &'static str, index: usize, message: String) -> Self {
        Self { path: vec![PathStep::Key(Cow::Borrowed(key)), PathStep::Index(index)], message }
    }

    fn inside(mut self, key: &'static str) -> Self {
        self.path.push(PathStep::Key(Cow::Borrowed(key)));
        self
    }
}

impl ImportState {
    /// Checks a record, and adds it to the state if it can be loaded.
    pub(super) fn accept(&mut self, record: &Record) -> Result<(), RecordFault> {
        match record {
            Record::User(user) => self.accept_user(user),
            Record::Label(LabelRecord { id, .. }) => {
                self.labels.insert(*id);
                Ok(())
            }
            Record::Form(form) => self.accept_form(form),
            Record::Group(group) if group.name == ALL_USERS => self.accept_all_users(group),
            Record::Group(group) => self.accept_group(group),
            Record::FlowStep(step) => self.accept_flow_step(step),
            Record::Submission(submission) => self.accept_submission(submission),
        }
    }

    fn accept_user(&mut self, user: &UserRecord) -> Result<(), RecordFault> {
        let key = key(&user.email);
        if let Some(other) = self.emails.owner(&key).filter(|other| *other != user.id) {
            return Err(RecordFault::at("email", format!("user {other} has this e-mail address")));
        }
        self.emails.set(user.id, Some(key.into_owned()));
        self.users.insert(user.id);
        Ok(())
    }

    fn accept_form(&mut self, form: &FormRecord) -> Result<(), RecordFault> {
        if let Some(parent) = form.parent_id {
            self.check_form_parent(form.id, parent)?;
        }
        let mut listed = HashSet::with_capacity(form.elements.len());
        for (index, element) in form.elements.iter().enumerate() {
            let refuse = |message| Err(RecordFault::in_list("elements", index, message).inside("id"));
            if !listed.insert(element.id) {
                return refuse(format!("element {} is listed twice", element.id));
            }
            if let Some(other) = self.form_of.get(&element.id).filter(|other| **other != form.id) {
                return refuse(format!("element {} belongs to form {other}", element.id));
            }
        }
        let unlisted = self.unlisted(form);
        if let Some(element) = unlisted.iter().filter(|element| self.answered.contains(element)).min() {
            return Err(RecordFault::at(
                "elements",
                format!("element {element} is left out, but there are answers to it"),
            ));
        }
        if self.graduates(form) && self.nested.contains(&form.id) {
            let message = "a submission of this form has a parent and children, and there is but one level below a graduated form";
            return Err(RecordFault::at("graduated", message.to_owned()));
        }

        self.forms.insert(form.id, FormFacts { parent: form.parent_id, graduated: form.graduated });
        for element in unlisted {
            self.form_of.remove(&element);
            self.dropped.insert(element);
        }
        self.form_of.extend(listed.iter().map(|element| (*element, form.id)));
        self.elements_of.insert(form.id, listed);
        Ok(())
    }

    fn check_form_parent(&self, form: i64, parent: i64) -> Result<(), RecordFault> {
        let mut ancestor = Some(parent);
        // A database that was written by SQL may already have a cycle, which is no longer than the number of forms.
        for _ in 0..=self.forms.len() {
            let Some(at) = ancestor else { break };
            if at == form {
                let message = if parent == form {
                    "a form can't be its own parent".to_owned()
                } else {
                    format!("form {parent} is itself below form {form}")
                };
                return Err(RecordFault::at("parent_id", message));
            }
            let Some(facts) = self.forms.get(&at) else {
                return Err(RecordFault::at("parent_id", format!("there is no form {at}")));
            };
            ancestor = facts.parent;
        }
        Ok(())
    }

    /// The built-in group gets the id of the record.
    fn accept_all_users(&mut self, group: &GroupRecord) -> Result<(), RecordFault> {
        if group.id != self.built_in && self.groups.contains(&group.id) {
            return Err(RecordFault::at("id", format!("group {} is another group than \"{ALL_USERS}\"", group.id)));
        }
        if group.external_id.is_some() {
            return Err(RecordFault::at("external_id", format!("the group \"{ALL_USERS}\" has no external id")));
        }
        if group.managed {
            return Err(RecordFault::at("managed", format!("the group \"{ALL_USERS}\" can't be managed")));
        }
        self.groups.remove(&self.built_in);
        self.groups.insert(group.id);
        self.built_in = group.id;
        Ok(())
    }

    fn accept_group(&mut self, group: &GroupRecord) -> Result<(), RecordFault> {
        if group.id == self.built_in {
            return Err(RecordFault::at("id", format!("group {} is the built-in group \"{ALL_USERS}\"", group.id)));
        }
        if let Some(external_id) = &group.external_id
            && let Some(other) = self.external_ids.owner(external_id).filter(|other| *other != group.id)
        {
            return Err(RecordFault::at("external_id", format!("group {other} has this external id")));
        }
        all_in(&self.users, "members", &group.members, "user")?;
        self.external_ids.set(group.id, group.external_id.clone());
        self.groups.insert(group.id);
        Ok(())
    }

    fn accept_flow_step(&mut self, step: &FlowStepRecord) -> Result<(), RecordFault> {
        self.form("form_id", step.form_id)?;
        all_in(&self.groups, "groups", &step.groups, "group")?;
        self.flow_steps.insert(step.id);
        Ok(())
    }

    fn accept_submission(&mut self, submission: &SubmissionRecord) -> Result<(), RecordFault> {
        let form = self.form("form_id", submission.form_id)?;
        if let Some(parent) = submission.parent_id {
            self.check_submission_parent(submission.id, form, parent)?;
        }
        if let Some(submitter) = submission.submitter_id.filter(|submitter| !self.users.contains(submitter)) {
            return Err(RecordFault::at("submitter_id", format!("there is no user {submitter}")));
        }
        all_in(&self.labels, "labels", &submission.labels, "label")?;
        all_in(&self.labels, "shared_labels", &submission.shared_labels, "label")?;
        all_in(&self.users, "pending_on", &submission.pending_on, "user")?;
        all_in(&self.users, "participants", &submission.participants, "user")?;
        all_in(&self.flow_steps, "flow_steps", &submission.flow_steps, "flow step")?;
        let mut answered = HashSet::with_capacity(submission.answers.len());
        for (index, answer) in submission.answers.iter().enumerate() {
            let (element, form) = (answer.element_id, submission.form_id);
            let refuse = |message| Err(RecordFault::in_list("answers", index, message).inside("element_id"));
            if self.form_of.get(&element) != Some(&form) {
                return refuse(format!("form {form} has no element {element}"));
            }
            if !answered.insert(element) {
                return refuse(format!("element {element} is answered twice"));
            }
        }

        let facts = SubmissionFacts { form: submission.form_id, parent: submission.parent_id };
        if let Some(before) = self.submissions.insert(submission.id, facts).and_then(|before| before.parent)
            && let Some(children) = self.children.get_mut(&before)
        {
            children.remove(&submission.id);
        }
        if let Some(parent) = submission.parent_id {
            self.children.entry(parent).or_default().insert(submission.id);
        }
        Ok(())
    }

    /// A submission of a graduated form has a parent or children, not both.
    fn check_submission_parent(&self, id: i64, form: FormFacts, parent: i64) -> Result<(), RecordFault> {
        let refuse = |message| Err(RecordFault::at("parent_id", message));
        if parent == id {
            return refuse("a submission can't be its own parent".to_owned());
        }
        let Some(facts) = self.submissions.get(&parent) else {
            return refuse(format!("there is no submission {parent}"));
        };
        let graduated = |facts: &SubmissionFacts| self.forms.get(&facts.form).is_some_and(|form| form.graduated);
        if graduated(facts) && facts.parent.is_some() {
            return refuse(format!("submission {parent} of a graduated form has a parent, so it can have no children"));
        }
        // Leaving a graduated form and getting a parent takes two records: the triggers see one change at a time.
        let is_graduated = form.graduated || self.submissions.get(&id).is_some_and(graduated);
        if is_graduated && self.children.get(&id).is_some_and(|children| !children.is_empty()) {
            return refuse(format!("submission {id} of a graduated form has children, so it can have no parent"));
        }
        Ok(())
    }

    fn form(&self, key: &'static str, id: i64) -> Result<FormFacts, RecordFault> {
        self.forms.get(&id).copied().ok_or_else(|| RecordFault::at(key, format!("there is no form {id}")))
    }
}

fn all_in(known: &HashSet<i64>, key: &'static str, ids: &[i64], what: &str) -> Result<(), RecordFault> {
    match ids.iter().position(|id| !known.contains(id)) {
        Some(index) => Err(RecordFault::in_list(key, index, format!("there is no {what} {}", ids[index]))),
        None => Ok(()),
    }
}
