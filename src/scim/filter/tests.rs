//! Filters and paths that directories send, and faulty ones.

use super::*;

fn shown(filter: &Filter<Test>) -> String {
    let each = |parts: &[Filter<Test>], between: &str| {
        format!("({})", parts.iter().map(shown).collect::<Vec<_>>().join(between))
    };
    match filter {
        Filter::All(parts) => each(parts, " & "),
        Filter::Any(parts) => each(parts, " | "),
        Filter::Not(part) => format!("!{}", shown(part)),
        Filter::Test(Test { attribute, comparison, value }) => {
            let sign = match comparison {
                Comparison::Equal => "=",
                Comparison::Begins => "^",
                Comparison::Contains => "~",
            };
            let value = match value {
                Literal::Null => "null".to_owned(),
                Literal::Truth(truth) => truth.to_string(),
                Literal::Text(text) => format!("{text:?}"),
            };
            format!("{attribute}{sign}{value}")
        }
    }
}

/// What Entra ID, Okta and other directories send, and what the grammar allows.
#[test]
fn filters_are_parsed() {
    for (text, expected) in [
        ("userName eq \"ana@example.com\"", "username=\"ana@example.com\""),
        ("externalId eq \"0a21f0f2-8d2a\"", "externalid=\"0a21f0f2-8d2a\""),
        ("displayName eq \"Sales \\\"EU\\\"\"", "displayname=\"Sales \\\"EU\\\"\""),
        ("id eq \"grp_1\" and members eq \"usr_2\"", "(id=\"grp_1\" & members=\"usr_2\")"),
        ("emails[type eq \"work\"].value eq \"a@b.example\"", "(emails.type=\"work\" & emails.value=\"a@b.example\")"),
        ("emails[type eq \"work\" and value co \"@b\"]", "(emails.type=\"work\" & emails.value~\"@b\")"),
        ("urn:ietf:params:scim:schemas:core:2.0:User:userName SW \"a\"", "username^\"a\""),
        ("active eq true", "active=true"),
        ("ACTIVE EQ \"x\"", "active=\"x\""),
        ("active eq \"False\"", "active=\"False\""),
        ("externalId eq null", "externalid=null"),
        ("a eq 7", "a=\"7\""),
        ("a eq 1 or b eq 2 and c eq 3", "(a=\"1\" | (b=\"2\" & c=\"3\"))"),
        ("(a eq 1 or b eq 2) and c eq 3", "((a=\"1\" | b=\"2\") & c=\"3\")"),
        ("not (a eq 1) and not(b eq 2)", "(!a=\"1\" & !b=\"2\")"),
        ("not eq 1", "not=\"1\""),
        ("a eq \"x\"and b eq 1", "(a=\"x\" & b=\"1\")"),
        ("  ((a co \"(\"))  ", "a~\"(\""),
        ("orders eq 1 or android eq 2", "(orders=\"1\" | android=\"2\")"),
    ] {
        let parsed = parse(text).map(|filter| shown(&filter)).unwrap_or_default();
        assert_eq!(parsed, expected, "{text}");
    }
}

#[test]
fn faulty_filters_are_refused() {
    let deep = format!("{}a eq 1{}", "(".repeat(30), ")".repeat(30));
    let long = vec!["a eq 1"; 300].join(" or ");
    for text in [
        "",
        " ",
        "a",
        "a eq",
        "a eq x",
        "a eq \"x",
        "a ne 1",
        "a pr",
        "a gt 1",
        "eq 1",
        "a eq 1 b eq 2",
        "a eq 1 and",
        "a eq 1 or or b eq 2",
        "(a eq 1",
        "a eq 1)",
        "a[b eq 1",
        "a[b[c eq 1]]",
        "a[b eq 1].",
        "not a eq 1",
        "a eq [1]",
        "a eq {}",
        "a co null",
        "a eq \"\\u0000\"",
        "and",
        "active eq False",
        "ä eq 1",
        "\"a\" eq 1",
        &deep,
        &long,
    ] {
        let fault = parse(text).expect_err(text);
        assert_eq!(fault.kind, FaultKind::Filter, "{text}");
    }
}

#[test]
fn paths_are_parsed() {
    let path = |text: &str| {
        let Path { attribute, filter, sub_attribute } = parse_path(text).ok()?;
        Some((attribute, filter.map(|filter| shown(&filter)).unwrap_or_default(), sub_attribute.unwrap_or_default()))
    };
    for (text, attribute, filter, sub_attribute) in [
        ("members", "members", "", ""),
        ("Members[Value eq \"usr_1\"]", "members", "value=\"usr_1\"", ""),
        ("members[value eq \"usr_1\" or value eq \"usr_2\"]", "members", "(value=\"usr_1\" | value=\"usr_2\")", ""),
        ("emails[type eq \"work\"].value", "emails", "type=\"work\"", "value"),
        ("name.givenName", "name.givenname", "", ""),
        ("urn:ietf:params:scim:schemas:core:2.0:User:name.familyName", "name.familyname", "", ""),
        ("urn:ietf:params:scim:schemas:core:2.0:Group", "", "", ""),
        (
            "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department",
            "urn:ietf:params:scim:schemas:extension:enterprise:2.0:user:department",
            "",
            "",
        ),
    ] {
        assert_eq!(path(text), Some((attribute.into(), filter.into(), sub_attribute.into())), "{text}");
    }
    for text in ["", "[", "members[", "members[]", "members[value eq \"x\"", "members[value eq \"x\"]]", "a b", "a.b["]
    {
        assert_eq!(parse_path(text).expect_err(text).kind, FaultKind::Path, "{text}");
    }
}
