//! Requests about groups that directories send, and faulty ones.

use super::*;

fn patch(operations: &str) -> Result<(String, String), String> {
    let body =
        format!(r#"{{"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": [{operations}]}}"#);
    let GroupPatch { steps, skipped } =
        GroupPatch::of_operations(body.as_bytes()).map_err(|fault| format!("{:?}", fault.kind))?;
    let steps = steps.iter().map(|step| match step {
        DirectoryGroupChange::Rename(name) => format!("rename {name}"),
        DirectoryGroupChange::Identify(id) => format!("identify {id:?}"),
        DirectoryGroupChange::Add(users) => format!("add {users:?}"),
        DirectoryGroupChange::Remove(users) => format!("remove {users:?}"),
        DirectoryGroupChange::Empty => "empty".to_owned(),
        DirectoryGroupChange::Replace(users) => format!("replace {users:?}"),
    });
    assert_eq!(skipped.named.len(), skipped.count);
    Ok((steps.collect::<Vec<_>>().join(", "), skipped.named.join(" ")))
}

/// Requests of Entra ID, Okta, JumpCloud, OneLogin and Keycloak.
#[test]
fn a_group_is_patched_in_every_spelling() {
    for (operations, steps, skipped) in [
        (r#"{"op": "Add", "path": "members", "value": [{"value": "usr_1"}, {"value": "usr_2"}]}"#, "add [1, 2]", ""),
        (r#"{"op": "Add", "path": "members", "value": [{"$ref": null, "value": "usr_1"}]}"#, "add [1]", ""),
        (r#"{"op": "add", "value": {"members": [{"value": "usr_1", "display": "Ana"}]}}"#, "add [1]", ""),
        (r#"{"op": "add", "path": "members", "value": {"value": "usr_1"}}"#, "add [1]", ""),
        (r#"{"op": "add", "path": "members", "value": "usr_1"}"#, "add [1]", ""),
        (r#"{"op": "add", "path": "members", "value": ["usr_1", {"VALUE": "usr_2"}]}"#, "add [1, 2]", ""),
        (r#"{"op": "Remove", "path": "members", "value": [{"value": "usr_1"}]}"#, "remove [1]", ""),
        (r#"{"op": "remove", "path": "members[value eq \"usr_1\"]"}"#, "remove [1]", ""),
        (
            r#"{"op": "Remove", "path": "Members[Value EQ \"usr_1\" or value eq \"usr_2\"]", "value": null}"#,
            "remove [1, 2]",
            "",
        ),
        (r#"{"op": "remove", "path": "members"}"#, "empty", ""),
        (r#"{"op": "remove", "path": "members", "value": []}"#, "remove []", ""),
        (r#"{"op": "add", "path": "members", "value": []}"#, "add []", ""),
        (r#"{"op": "replace", "path": "members", "value": [{"value": "usr_3"}]}"#, "replace [3]", ""),
        (r#"{"op": "replace", "value": {"id": "grp_1", "displayName": "Sales"}}"#, "rename Sales", ""),
        (r#"{"op": "Replace", "path": "displayName", "value": "Sales"}"#, "rename Sales", ""),
        (
            r#"{"op": "replace", "path": "urn:ietf:params:scim:schemas:core:2.0:Group:displayName", "value": ["Sales"]}"#,
            "rename Sales",
            "",
        ),
        (r#"{"op": "Add", "path": "externalId", "value": "a-1"}"#, "identify Some(\"a-1\")", ""),
        (r#"{"op": "remove", "path": "externalId"}"#, "identify None", ""),
        (
            r#"{"op": "add", "path": "members", "value": "usr_1"}, {"op": "add", "path": "members", "value": "usr_2"},
               {"op": "remove", "path": "members", "value": "usr_3"}, {"op": "remove", "path": "members[value eq \"usr_4\"]"},
               {"op": "add", "path": "members", "value": "usr_3"}"#,
            "add [1, 2], remove [3, 4], add [3]",
            "",
        ),
        (
            r#"{"op": "add", "path": "members", "value": [{"value": "usr_1"}, {"value": "grp_5"}, {"value": "ana@example.com"},
               {"value": "usr_0"}, {"value": "usr_99999999999999999999"}, {"value": ""}]}"#,
            "add [1]",
            "grp_5 ana@example.com usr_0 usr_99999999999999999999 ",
        ),
        (r#"{"op": "remove", "path": "members", "value": [{"value": "grp_5"}]}"#, "remove []", ""),
        (r#"{"op": "replace", "path": "members[value eq \"usr_1\"].display", "value": "Ana"}"#, "", ""),
        (r#"{"op": "remove", "path": "members[value eq \"usr_1\"].display"}"#, "", ""),
        (r#"{"op": "add", "path": "owners", "value": [{"value": "usr_1"}]}"#, "", ""),
    ] {
        assert_eq!(patch(operations), Ok((steps.to_owned(), skipped.to_owned())), "{operations}");
    }
}

/// None of these may be taken for a removal of all members.
#[test]
fn faulty_operations_on_a_group_are_refused() {
    for (operations, expected) in [
        (r#"{"op": "remove"}"#, "Target"),
        (r#"{"op": "remove", "value": {"members": []}}"#, "Target"),
        (r#"{"op": "remove", "path": "members", "value": [{}]}"#, "Value"),
        (r#"{"op": "remove", "path": "members", "value": {"display": "Ana"}}"#, "Value"),
        (r#"{"op": "remove", "path": "members", "value": [[]]}"#, "Value"),
        (r#"{"op": "remove", "path": "members", "value": true}"#, "Value"),
        (r#"{"op": "remove", "path": "members[display eq \"Ana\"]"}"#, "Filter"),
        (r#"{"op": "remove", "path": "members[not (value eq \"usr_1\")]"}"#, "Filter"),
        (r#"{"op": "remove", "path": "members[value co \"usr\"]"}"#, "Filter"),
        (r#"{"op": "remove", "path": "members[value eq null]"}"#, "Filter"),
        (r#"{"op": "remove", "path": "members[value eq \"usr_1\""}"#, "Path"),
        (r#"{"op": "remove", "path": "members.value", "value": "usr_1"}"#, "Path"),
        (r#"{"op": "replace", "path": "members[value eq \"usr_1\"]", "value": {"value": "usr_2"}}"#, "Path"),
        (r#"{"op": "add", "path": "members"}"#, "Value"),
        (r#"{"op": "replace", "path": "members", "value": null}"#, "Value"),
        (r#"{"op": "replace", "path": "displayName", "value": ""}"#, "Value"),
        (r#"{"op": "remove", "path": "displayName"}"#, "Mutability"),
        (r#"{"op": "replace", "value": []}"#, "Value"),
    ] {
        assert_eq!(patch(operations), Err(expected.to_owned()), "{operations}");
    }
}

#[test]
fn a_resource_has_a_name_and_members_only_if_it_names_them() {
    let read = |body: &str| GroupResource::read(body.as_bytes());
    let whole = read(r#"{"displayName": "Sales", "externalId": "7", "members": [{"value": "usr_2"}, {"value": "x"}]}"#);
    let whole = whole.unwrap();
    assert_eq!((whole.members.as_deref(), whole.skipped.count), (Some(&[2][..]), 1));
    assert_eq!(read(r#"{"displayName": "Sales", "members": []}"#).unwrap().members, Some(Vec::new()));
    for body in [r#"{"displayName": "Sales"}"#, r#"{"displayName": "Sales", "members": null}"#] {
        let resource = read(body).unwrap();
        assert_eq!(resource.members, None);
        assert_eq!(resource.into_patch().steps.len(), 2);
    }
    for body in ["{}", r#"{"displayName": ""}"#, r#"{"displayName": "Sales", "members": [7.5]}"#] {
        assert!(read(body).is_err(), "{body}");
    }
}

#[test]
fn only_some_of_many_skipped_members_are_named() {
    let members: Vec<_> = (0..200).map(|number| format!("\"x{number}\"")).collect();
    let body = format!(r#"{{"displayName": "Sales", "members": [{}]}}"#, members.join(","));
    let skipped = GroupResource::read(body.as_bytes()).unwrap().skipped;
    assert_eq!((skipped.named.len(), skipped.count), (MAX_NAMED, 200));
}
