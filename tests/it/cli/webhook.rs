//! `formgate webhook`.

use serde_json::{Value, json};

use crate::support::fixture::{Site, on_both_databases};

on_both_databases! {
    async fn an_operator_lists_pauses_replays_and_rotates(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let node = site.start();
        let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
        let body = json!({"target_url": "https://hooks.example.com/1"});
        let made = client.post("/api/v1/subscribe").json(&body).send().await.json()["data"].clone();
        let run = |arguments: &[&str]| {
            let [action, rest @ ..] = arguments else { panic!("an action") };
            site.run(&[&["webhook", action, "--tenant", "acme"], rest].concat(), b"")
        };
        let json_of = |arguments: &[&str]| {
            let output = run(&[arguments, &["--json"]].concat());
            assert_eq!(output.code, 0, "{output:?}");
            serde_json::from_str::<Value>(&output.stdout).unwrap()
        };
        let shown = async || client.get("/api/v1/subscribe/hook_1").send().await.json()["data"].clone();
        assert_eq!(json_of(&["list"]), json!([shown().await]));
        assert_eq!(json_of(&["show", "hook_1"]), shown().await);
        let fields = run(&["show", "hook_1"]).stdout;
        assert!(fields.lines().any(|line| line.split_whitespace().eq(["form", "every"])), "{fields}");
        let table = run(&["list"]).stdout;
        assert!(table.starts_with("ID      STATE   EVENT"), "{table}");
        assert!(table.contains("hook_1  active  submission.created  every  0"), "{table}");
        let limited = ["token", "create", "--tenant", "acme", "--name", "limited", "--forms", "for_1,for_2"];
        let limited = site.run(&limited, b"").stdout.trim_end().to_owned();
        assert_eq!(client.with(&limited).post("/api/v1/subscribe").json(&body).send().await.status, 201);
        let fields = run(&["show", "hook_2"]).stdout;
        let row = |name: &str| fields.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned());
        assert_eq!(row("form "), Some("in reach".to_owned()), "{fields}");
        assert_eq!(row("forms "), Some("for_1 for_2 (those of its token, with sub-forms)".to_owned()), "{fields}");
        assert!(run(&["list"]).stdout.contains("hook_2  active  submission.created  in reach  0"), "{fields}");
        assert_eq!(json_of(&["pause", "1"])["state"], "paused");
        assert_eq!(shown().await["state"], "paused");
        let replayed = run(&["replay", "1", "--failed"]);
        assert_eq!((replayed.code, replayed.stderr.contains("formgate webhook resume")), (0, true), "{replayed:?}");
        assert_eq!(json_of(&["resume", "hook_1"])["state"], "active");
        assert_eq!(json_of(&["deliveries", "hook_1", "--failed"]), json!([]));
        assert_eq!(json_of(&["replay", "1", "--since", "2020-01-01"])["pending"], 0);
        let rotated = run(&["rotate", "1", "--grace", "0"]);
        assert!(rotated.stdout.starts_with("whsec_") && made["secret"] != rotated.stdout.trim_end(), "{rotated:?}");
        for (arguments, code, error) in [
            (&["show", "hook_7"][..], 1, "tenant `acme` has no subscription hook_7"),
            (&["pause", "hook_7"], 1, "has no subscription hook_7"),
            (&["rotate", "7"], 1, "has no subscription hook_7"),
            (&["deliveries", "7"], 1, "has no subscription hook_7"),
            (&["replay", "7", "--failed"], 1, "has no subscription hook_7"),
            (&["replay", "1", "--event", "evt_1"], 1, "formgate webhook deliveries"),
            (&["replay", "1", "--submissions", "sub_1,2"], 1, "sub_1, sub_2"),
            (&["replay", "1", "--since", "yesterday"], 1, "neither a day"),
            (&["show", "for_1"], 2, "hook_<number>"),
            (&["replay", "1"], 2, "--failed"),
            (&["replay", "1", "--failed", "--event", "evt_1"], 2, "cannot be used with"),
        ] {
            let output = run(arguments);
            assert_eq!(output.code, code, "{arguments:?}: {output:?}");
            assert!(output.stderr.contains(error), "{arguments:?}: {output:?}");
        }
    }
}
