//! The steps of the gate, in their order, as a caller meets them.

mod admit;
mod bad_tokens;
mod body;
mod coding;
mod cors;
mod expiry;
mod head;
mod hostile;
mod limits;
mod memory;
mod networks;
mod outage;
mod resolve;
mod respond;
mod route;
mod scopes;
mod unread;
mod verify;

use serde_json::json;

/// The line of an import that makes a form without elements.
fn form(id: u32, name: &str) -> String {
    let form = json!({"type": "form", "id": id, "name": name, "anonymous": false, "disabled": false, "parent_id": null, "graduated": false, "elements": []});
    format!("{form}\n")
}
