//! `GET /submission/changes`: the feed of changes, for those who keep a copy.
//!
//! Owns the parameters and the text of a cursor; the store reads the log.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crc::{CRC_32_ISO_HDLC, Crc};
use http::StatusCode;
use sha2::{Digest, Sha256};

use super::id::IdKind;
use super::json::Json;
use super::submissions::{self, ChangesEnd, Selection};
use super::{Call, page, query};
use crate::error::{Faults, LostChanges, Refusal};
use crate::gate::Admitted;
use crate::reply::{Reply, WHOLE_BYTES};
use crate::store::{ChangeCursor, ChangePage, ChangesFrom, ChangesRead, FormReach, LogMark, LostCursor, Store};

/// How many changes a page has unless the request says otherwise, and at most.
///
/// Larger: an answer takes longer. Smaller: following many changes takes more requests of the budget.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 500;

/// How long a request may wait for a change.
///
/// Larger: proxies between may give up first. Smaller: following takes more requests of the budget.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(25);

/// How many forms a request may name.
///
/// Larger: statements are longer. Smaller: readers of many forms need several cursors.
const MAX_FORMS: usize = 100;

/// Detects cursors that were cut off or mistyped.
const CHECKSUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

const PATH: &str = "/api/v1/submission/changes";

struct Parameters {
    from: ChangesFrom,
    limit: u32,
    /// Sorted; empty for every form.
    forms: Vec<i64>,
    wait: Duration,
    selection: Selection,
}

impl Parameters {
    fn parse(call: &Call<'_>, reach: &FormReach, faults: &mut Faults) -> Self {
        let limit = query::integer(call, "limit", 1..=MAX_LIMIT, faults).unwrap_or(DEFAULT_LIMIT);
        let longest = u32::try_from(MAX_WAIT.as_secs()).unwrap_or(u32::MAX);
        let wait = query::integer(call, "wait", 0..=longest, faults).unwrap_or(0);
        let forms = forms(query::values(call, "forms"), faults);
        let from = match query::value(call, "cursor", faults).as_deref() {
            None => ChangesFrom::Beginning,
            Some("now") => ChangesFrom::Now,
            Some(text) => match read_cursor_of(text, &forms, reach) {
                Ok(cursor) => ChangesFrom::Cursor(cursor),
                Err(fault) => {
                    let malformed = "The cursor must be `now` or one that an answer had; leave it out to begin.";
                    faults.add("cursor", fault.unwrap_or(malformed));
                    ChangesFrom::Beginning
                }
            },
        };
        let selection = Selection::parse(call, faults);
        Self { from, limit, forms, wait: Duration::from_secs(wait.into()), selection }
    }
}

/// The forms of every value, each of which is a list.
fn forms<'a>(values: impl Iterator<Item = Cow<'a, str>>, faults: &mut Faults) -> Vec<i64> {
    let (mut ids, mut are_ids) = (Vec::new(), true);
    for value in values {
        for id in value.split(',') {
            // One more shows that there are too many.
            if ids.len() <= MAX_FORMS {
                let id = IdKind::Form.parse(id.trim());
                are_ids &= id.is_some();
                ids.extend(id);
            }
        }
    }
    match are_ids.then_some(ids) {
        Some(mut ids) if ids.len() <= MAX_FORMS => {
            ids.sort_unstable();
            ids.dedup();
            ids
        }
        _ => {
            faults.add("forms", format_args!("The forms must be at most {MAX_FORMS} ids of forms, joined by commas."));
            Vec::new()
        }
    }
}

/// With which forms and which reach a cursor was made: it is only used with the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CursorScope {
    /// 64 bits of SHA-256, as of the reach.
    forms: [u8; 8],
    /// None: everything was in reach.
    reach: Option<[u8; 8]>,
}

impl CursorScope {
    fn of(forms: &[i64], reach: &FormReach) -> Self {
        Self { forms: digest_of(forms), reach: reach.forms().map(digest_of) }
    }
}

pub(super) fn digest_of(forms: &[i64]) -> [u8; 8] {
    let mut digest = Sha256::new();
    forms.iter().for_each(|form| digest.update(form.to_be_bytes()));
    *digest.finalize().first_chunk().expect("SHA-256 has 32 bytes")
}

/// The text of a cursor: 16 bytes of the epoch, five numbers, the digest of the forms and of the reach, if there is one, a
/// checksum.
pub(super) fn cursor_text(cursor: &ChangeCursor, forms: &[i64], reach: &FormReach) -> String {
    let epoch = u128::from_str_radix(&cursor.epoch, 16).unwrap_or_default();
    let mut bytes = epoch.to_be_bytes().to_vec();
    for number in [cursor.position, cursor.base, cursor.began, cursor.seen.seq, cursor.seen.stamp] {
        bytes.extend(number.to_be_bytes());
    }
    let scope = CursorScope::of(forms, reach);
    bytes.extend(scope.forms);
    bytes.extend(scope.reach.iter().flatten());
    bytes.extend(CHECKSUM.checksum(&bytes).to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A cursor and its scope. None if it is not the text of one. One that a version without stamps handed out is of no log.
pub(super) fn read_cursor(text: &str) -> Option<(ChangeCursor, CursorScope)> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (rest, checksum) = bytes.split_last_chunk::<4>()?;
    if CHECKSUM.checksum(rest) != u32::from_be_bytes(*checksum) {
        return None;
    }
    let (epoch, rest) = rest.split_first_chunk::<16>()?;
    let words: Vec<[u8; 8]> = rest.as_chunks().0.to_vec();
    let (numbers, scope) = match words[..] {
        _ if !rest.len().is_multiple_of(8) => return None,
        [.., forms] if words.len() == 4 || words.len() == 6 => {
            (&words[..words.len() - 1], CursorScope { forms, reach: None })
        }
        [.., forms, reach] if words.len() == 7 => (&words[..5], CursorScope { forms, reach: Some(reach) }),
        _ => return None,
    };
    let numbers: Vec<i64> = numbers.iter().map(|bytes| i64::from_be_bytes(*bytes)).collect();
    let epoch = format!("{:032x}", u128::from_be_bytes(*epoch));
    let cursor = match numbers[..] {
        [position, base, began, seq, stamp] if seq >= 0 => {
            ChangeCursor { epoch, position, base, began, seen: LogMark { seq, stamp } }
        }
        [position, base, began] => {
            ChangeCursor { epoch: String::new(), position, base, began, seen: LogMark::default() }
        }
        _ => return None,
    };
    let is_valid = cursor.position >= 0 && cursor.base >= 0 && cursor.began >= 0;
    is_valid.then_some((cursor, scope))
}

/// A cursor that is used with these forms and this reach, or why it can't be. `None`: it is the text of no cursor.
pub(super) fn read_cursor_of(
    text: &str,
    forms: &[i64],
    reach: &FormReach,
) -> Result<ChangeCursor, Option<&'static str>> {
    let (cursor, made_with) = read_cursor(text).ok_or(None)?;
    let scope = CursorScope::of(forms, reach);
    if made_with.reach != scope.reach {
        return Err(Some("The cursor was made with another reach."));
    }
    if made_with.forms != scope.forms {
        return Err(Some("The cursor was made with other forms."));
    }
    Ok(cursor)
}

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let reach = admitted.token().reach();
    let parameters = Parameters::parse(call, reach, &mut faults);
    let mut parameters = faults.into_result(parameters)?;
    let zone = &admitted.tenant().timezone;
    parameters.selection.check(&call.store(admitted).await?).await?;
    loop {
        let (read, store) = read(&parameters, admitted, call).await?;
        let page = match read {
            ChangesRead::Page(page) => page,
            ChangesRead::Lost(lost) => return Err(lost_changes(call, lost, PATH, &["cursor"])),
        };
        let ChangePage { changes, submissions, cursor, has_more } = page;
        let cursor = cursor_text(&cursor, &parameters.forms, reach);
        let next = format!("{}{PATH}?{}cursor={cursor}", call.origin, query::without(call, "cursor"));
        let shown = changes.len();
        let mut end = ChangesEnd::new(changes, cursor, has_more, next);
        if let Some(view) = submissions.read()? {
            let mut json = Json::with_capacity(page::TYPICAL_BYTES);
            json.raw("{\"data\":[");
            submissions::write_changes(&mut json, &mut end, &view, &parameters.selection, zone);
            if json.position() <= WHOLE_BYTES {
                end.write(&mut json);
                let read = submissions::read_by_showing(&view);
                return Ok(json.reply(StatusCode::OK).with_rows(shown).with_read(read));
            }
            end.begin_again();
        }
        if shown <= 1 {
            let reader = store.read_in_parts(submissions.ids().iter().copied());
            return Ok(submissions::stream_changes(reader, end, &parameters.selection, zone).await?.with_rows(shown));
        }
        // Parts are read later than the log, and may show what has no number yet. So only a single submission is read
        // in parts.
        parameters.limit = u32::try_from(shown / 2).unwrap_or(1);
    }
}

/// A page; if it is empty, one after a change that happens in time. Between two looks, the account may move to another
/// database: so the store is that of the last one.
async fn read(parameters: &Parameters, admitted: &Admitted, call: &Call<'_>) -> Result<(ChangesRead, Store), Refusal> {
    let elements = parameters.selection.elements();
    let mut store = call.store(admitted).await?.showing(elements);
    let permit = if parameters.wait.is_zero() { None } else { store.wait_for_changes() };
    // Before the log is read: what is written later wakes this request.
    let mut waiting = permit.map(|permit| (permit, call.noticed_writes.wait(&admitted.tenant().slug)));
    let deadline = Instant::now() + parameters.wait;
    let mut from = parameters.from.clone();
    loop {
        let read = store.changes(&from, &parameters.forms, parameters.limit).await?;
        let ChangesRead::Page(page) = &read else { return Ok((read, store)) };
        if !page.changes.is_empty() || page.has_more {
            return Ok((read, store));
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some((_, reader)) = waiting.as_mut().filter(|_| !left.is_zero() && !call.stopping.is_cancelled())
            else {
                return Ok((read, store));
            };
            drop(store);
            tokio::time::timeout(left, call.stopping.run_until_cancelled(reader.next_look())).await.ok();
            store = call.store(admitted).await?.showing(elements);
            if store.has_changes_after(&page.cursor, &parameters.forms).await? {
                break;
            }
        }
        from = ChangesFrom::Cursor(page.cursor.clone());
    }
}

/// The refusal of a lost cursor, with the URL of a path that leaves out some parameters.
pub(super) fn lost_changes(call: &Call<'_>, lost: LostCursor, path: &str, left_out: &[&str]) -> Refusal {
    let (reason, message) = match lost {
        LostCursor::Expired => ("expired", "The cursor is too old: begin again."),
        LostCursor::Reset => ("reset", "The cursor is of another log, or a form was moved in the tree: begin again."),
        LostCursor::Ahead => ("ahead", "The cursor is ahead of the log, which was restored: begin again."),
    };
    let others = query::without_any(call, left_out);
    let others = others.trim_end_matches('&');
    let restart = format!("{}{path}{}{others}", call.origin, if others.is_empty() { "" } else { "?" });
    Refusal::ChangesLost(LostChanges { reason, message, restart })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor() -> ChangeCursor {
        let seen = LogMark { seq: 13, stamp: -9 };
        ChangeCursor { epoch: format!("{:032x}", 7), position: 12, base: 3, began: 5, seen }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        for reach in [FormReach::All, FormReach::of([]), FormReach::of([3])] {
            let text = cursor_text(&cursor(), &[1, 2], &reach);
            assert_eq!(read_cursor(&text), Some((cursor(), CursorScope::of(&[1, 2], &reach))));
        }
    }

    #[test]
    fn a_cursor_is_only_used_with_the_forms_and_the_reach_that_it_was_made_with() {
        let [all, one, two] = [FormReach::All, FormReach::of([1]), FormReach::of([1, 2])];
        let (forms, reach) = ("The cursor was made with other forms.", "The cursor was made with another reach.");
        for (made, used, fault) in [
            ((&[][..], &all), (&[][..], &all), None),
            ((&[1], &one), (&[1], &one), None),
            ((&[1], &all), (&[2], &all), Some(forms)),
            ((&[1], &one), (&[2], &one), Some(forms)),
            ((&[1], &all), (&[], &one), Some(reach)),
            ((&[], &one), (&[], &all), Some(reach)),
            ((&[], &one), (&[], &two), Some(reach)),
        ] {
            let text = cursor_text(&cursor(), made.0, made.1);
            assert_eq!(read_cursor_of(&text, used.0, used.1).err(), fault.map(Some), "{made:?} {used:?}");
        }
    }

    #[test]
    fn a_cursor_of_a_version_without_stamps_is_one_of_no_log() {
        let text = cursor_text(&cursor(), &[1], &FormReach::All);
        let mut bytes = URL_SAFE_NO_PAD.decode(text).expect("it is the text of a cursor");
        bytes.truncate(bytes.len() - 4);
        bytes.drain(40..56);
        bytes.extend(CHECKSUM.checksum(&bytes).to_be_bytes());
        let (read, scope) = read_cursor(&URL_SAFE_NO_PAD.encode(bytes)).expect("it is the text of a cursor");
        assert_eq!((read.epoch.as_str(), read.position), ("", 12));
        assert_eq!(scope, CursorScope::of(&[1], &FormReach::All));
    }

    #[test]
    fn a_text_that_was_changed_is_no_cursor() {
        let text = cursor_text(&cursor(), &[], &FormReach::All);
        for other in ["", "x", &text[1..], &text[..text.len() - 1], &format!("{text}A"), &text.replacen('A', "B", 1)] {
            assert_eq!(read_cursor(other), None, "{other}");
        }
    }
}
