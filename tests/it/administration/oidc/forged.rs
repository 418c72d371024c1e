//! Answers that no real provider gives.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::keys::{Key, sign_with_secret, unsigned};
use super::{Caller, Leaving, administration};
use crate::administration::scene::{Scene, text};
use crate::support::answer::Answer;
use crate::support::certificate;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::receiver::{Act, Receiver};

/// After how long a provider that failed is asked again, and a little more.
const AGAIN: Duration = Duration::from_millis(2100);

/// How long a line of the log may take on a busy machine.
const LOGGED: Duration = Duration::from_secs(30);

/// What a forged provider answers.
#[derive(Clone)]
struct Answers {
    metadata: Vec<Act>,
    keys: Vec<Act>,
    token: Vec<Act>,
}

/// A provider whose answers a test chooses.
struct Forged {
    receiver: Receiver,
    answers: Arc<Mutex<Answers>>,
}

fn json_of(value: &Value) -> Vec<Act> {
    Act::answer(200, &["Content-Type: application/json"], &value.to_string())
}

impl Forged {
    async fn start() -> Self {
        let nothing = Answers { metadata: Act::status(404), keys: Act::status(404), token: Act::status(404) };
        let answers = Arc::new(Mutex::new(nothing));
        let chosen = Arc::clone(&answers);
        let receiver = Receiver::deciding(move |_, request| {
            let answers = chosen.lock().expect("nothing panics with the lock").clone();
            match &*request.line {
                line if line.contains("/.well-known/") => answers.metadata,
                line if line.contains("/keys") => answers.keys,
                _ => answers.token,
            }
        });
        let forged = Self { receiver: receiver.await, answers };
        forged.set(|answers| answers.metadata = json_of(&forged.metadata()));
        forged
    }

    fn issuer(&self) -> String {
        format!("https://localhost:{}", self.receiver.address.port())
    }

    fn metadata(&self) -> Value {
        let issuer = self.issuer();
        json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/keys"),
            "authorization_response_iss_parameter_supported": true,
        })
    }

    fn set(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock().expect("nothing panics with the lock"));
    }

    fn set_token(&self, token: &str) {
        self.set(|answers| answers.token = json_of(&json!({ "token_type": "Bearer", "id_token": token })));
    }

    /// How often something was asked for.
    fn asked(&self, what: &str) -> usize {
        self.receiver.requests().iter().filter(|request| request.line.contains(what)).count()
    }

    /// The claims of a person who may sign in.
    fn claims(&self, leaving: &Leaving) -> Value {
        let now = jiff::Timestamp::now().as_second();
        json!({
            "iss": self.issuer(), "sub": "7", "aud": "formgate", "nonce": leaving.parameter("nonce"),
            "iat": now, "exp": now + 60, "email": "ana@acme.example", "email_verified": true, "groups": ["owners"],
        })
    }

    /// The query of a valid answer.
    fn query(&self, leaving: &Leaving) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("state", &leaving.parameter("state")).append_pair("iss", &self.issuer());
        query.append_pair("code", "c0de").finish()
    }
}

async fn scene(engine: Engine, forged: &Forged) -> Scene {
    // A request may take longer than a provider that never answers.
    let limits = "bad_tokens_burst = 1000\nbad_tokens_per_second = 1000\nrequest_seconds = 60";
    let limits: toml::Table = limits.parse().expect("TOML");
    let folder = crate::support::folder::temporary("authority");
    let authority = certificate::authority(folder.path());
    let site = Scene::site(engine).gateway("limits", limits);
    Scene::of(site.gateway("administration", administration(&forged.issuer(), &authority)))
}

/// What a sign-in leaves in the databases.
async fn state(scene: &Scene) -> [i64; 2] {
    let database = scene.database("acme").await;
    let count = "SELECT (SELECT count(*) FROM admin_sessions), (SELECT count(*) FROM admin_links)";
    let counts = database.integers(count).await;
    database.close().await;
    counts
}

on_both_databases! {
    async fn a_token_with_a_defect_signs_no_one_in(engine: Engine) {
        let forged = Forged::start().await;
        let mut scene = scene(engine, &forged).await;
        let caller = Caller::of(&scene, "acme", &scene.node);
        let (key, other) = (Key::new("k"), Key::new("k"));
        forged.set(|answers| answers.keys = json_of(&json!({ "keys": [{ "kty": "odd" }, key.public()] })));
        let now = jiff::Timestamp::now().as_second();
        for (claim, value, reason) in [
            ("nonce", json!("of another sign-in"), "`nonce` is of another sign-in"),
            ("nonce", Value::Null, "`nonce` is of another sign-in"),
            ("aud", json!("another client"), "`aud` is not this client"),
            ("aud", json!(["formgate", "another"]), "`aud` is not this client"),
            ("azp", json!("another"), "`azp` is another one"),
            ("iss", json!("https://evil.example"), "`iss` is another issuer"),
            ("exp", json!(now - 61), "it has expired"),
            ("iat", json!(now + 120), "it was issued in the future"),
            ("iat", json!(now.to_string()), "`iat` is missing, or not a number"),
            ("sub", json!("4\u{200B}2"), "invisible characters"),
            ("sub", json!(""), "`sub` is missing"),
            ("groups", json!(["others"]), "has no value that gives a role"),
            ("groups", Value::Null, "has no value that gives a role"),
        ] {
            let leaving = caller.leave("").await;
            let mut claims = forged.claims(&leaving);
            claims[claim] = value.clone();
            forged.set_token(&key.sign(&claims));
            let answer = caller.back(&forged.query(&leaving), &leaving.cookie).send().await;
            assert_eq!(answer.status, 403, "{claim} {value}: {answer:?}");
            scene.node.wait_for_lines(LOGGED, reason, 1);
        }
        let secret = "a secret: of formgate/100%";
        let without_role = |claims: &Value| {
            let mut claims = claims.clone();
            claims.as_object_mut().expect("an object").remove("groups");
            claims
        };
        type Forgery<'f> = (&'static str, &'f dyn Fn(&Value) -> String);
        let forgeries: [Forgery<'_>; 6] = [
            ("its algorithm is not accepted", &|claims| sign_with_secret(claims, secret)),
            ("its algorithm is not accepted", &unsigned),
            ("its signature is wrong", &|claims| other.sign(claims)),
            ("the claim `groups` is missing", &|claims| key.sign(&without_role(claims))),
            ("not a signed JSON Web Token", &|_| "a.b.c".to_owned()),
            ("not a signed JSON Web Token", &|_| String::new()),
        ];
        for (reason, forge) in forgeries {
            let leaving = caller.leave("").await;
            forged.set_token(&forge(&forged.claims(&leaving)));
            let answer = caller.back(&forged.query(&leaving), &leaving.cookie).send().await;
            assert_eq!(answer.status, 403, "{reason}: {answer:?}");
            scene.node.wait_for_lines(LOGGED, reason, 1);
        }
        assert_eq!((state(&scene).await, forged.asked("/keys")), ([0, 0], 1), "no one is signed in, by one read of the keys");
        let leaving = caller.leave("").await;
        forged.set_token(&key.sign(&forged.claims(&leaving)));
        caller.arrive(&forged.query(&leaving), &leaving.cookie, "/admin").await;
        assert_eq!((state(&scene).await, forged.asked("/.well-known/")), ([1, 0], 1));
    }

    async fn an_answer_of_another_sign_in_is_refused(engine: Engine) {
        let forged = Forged::start().await;
        let scene = scene(engine, &forged).await;
        let caller = Caller::of(&scene, "acme", &scene.node);
        let key = Key::new("k");
        forged.set(|answers| answers.keys = json_of(&json!({ "keys": [key.public()] })));
        let (own, foreign) = (caller.leave("").await, caller.leave("").await);
        assert_ne!(own.parameter("state"), foreign.parameter("state"));
        forged.set_token(&key.sign(&forged.claims(&own)));
        let query = forged.query(&own);
        let state_of = own.parameter("state");
        let without_issuer = format!("state={state_of}&code=c0de");
        for (query, cookie, status) in [
            (query.replace(&state_of, "wrong"), &*own.cookie, 400),
            (query.replace("state", "state_"), &own.cookie, 400),
            (query.clone(), &foreign.cookie, 400),
            (query.clone(), "", 400),
            (query.clone(), "__Host-formgate-sign-in-AAAAAAAA=AAAA", 400),
            (format!("{query}&state={state_of}"), &own.cookie, 400),
            (format!("{query}&code=b"), &own.cookie, 400),
            (query.replace("c0de", ""), &own.cookie, 400),
            (format!("state={state_of}&iss={}", forged.issuer()), &own.cookie, 400),
            (String::new(), &own.cookie, 400),
            (without_issuer, &own.cookie, 403),
            (format!("state={state_of}&code=c0de&iss=https://evil.example"), &own.cookie, 403),
            (format!("state={state_of}&iss={}&error=%3Cscript%3E", forged.issuer()), &own.cookie, 403),
        ] {
            let answer = caller.back(&query, cookie).send().await;
            assert_eq!(answer.status, status, "{query} with {cookie}: {answer:?}");
            assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
            assert!(!text(&answer).contains("script") && text(&answer).contains("Sign in again"), "{answer:?}");
            let is_answer = query.contains(&format!("state={state_of}&")) && query.matches("state=").count() == 1;
            let clears = is_answer && cookie == own.cookie && !query.contains("code=b");
            assert_eq!(answer.header("set-cookie").is_some(), clears, "{query} with {cookie}");
        }
        assert_eq!((state(&scene).await, forged.asked("/token")), ([0, 0], 0), "no code was exchanged");
        caller.arrive(&query, &own.cookie, "/admin").await;
        for target in ["//evil.example", "https://evil.example", "/enter/x", "/sign-out", "/tokens%0d%0aa:b"] {
            let leaving = caller.leave(&format!("?to={target}")).await;
            forged.set_token(&key.sign(&forged.claims(&leaving)));
            caller.arrive(&forged.query(&leaving), &leaving.cookie, "/admin").await;
        }
    }

    async fn two_tabs_sign_in_and_a_strangers_link_to_the_callback_ends_neither(engine: Engine) {
        let forged = Forged::start().await;
        let scene = scene(engine, &forged).await;
        let caller = Caller::of(&scene, "acme", &scene.node);
        let key = Key::new("k");
        forged.set(|answers| answers.keys = json_of(&json!({ "keys": [key.public()] })));
        let (first, second) = (caller.leave("?to=/tokens").await, caller.leave("?to=/audit").await);
        let both = format!("a=b; {}; {}", first.cookie, second.cookie);
        for query in ["state=foreign&code=x", "", "error=access_denied", "state=a&state=b"] {
            let answer = caller.back(query, &both).send().await;
            assert_eq!((answer.status.as_u16(), answer.header("set-cookie")), (400, None), "{query}");
        }
        // The first tab comes back, and the browser removes its cookie only.
        for (tab, cookies, page) in [(&first, &*both, "/admin/tokens"), (&second, &second.cookie, "/admin/audit")] {
            forged.set_token(&key.sign(&forged.claims(tab)));
            let answer = caller.back(&forged.query(tab), cookies).send().await;
            let (name, _) = tab.cookie.split_once('=').expect("a value");
            let cleared = answer.header("set-cookie").expect("its cookie is cleared");
            assert!(cleared.starts_with(&format!("{name}=; Max-Age=0;")), "{cleared}");
            caller.press(&answer, page).await;
        }
    }

    async fn of_many_sign_ins_of_a_browser_the_oldest_are_given_up(engine: Engine) {
        let forged = Forged::start().await;
        let scene = scene(engine, &forged).await;
        let caller = Caller::of(&scene, "acme", &scene.node);
        let mut jar: Vec<String> = Vec::new();
        for _ in 0..12 {
            let answer = caller.client.get("/admin/sign-in").header("cookie", &jar.join("; ")).send().await;
            assert_eq!(answer.status, 303, "{answer:?}");
            for set in answer.headers.get_all("set-cookie") {
                let (pair, attributes) = set.to_str().expect("ASCII").split_once("; ").expect("attributes");
                let (name, _) = pair.split_once('=').expect("a value");
                let is_removed = attributes.contains("Max-Age=0;");
                assert_eq!(jar.iter().any(|cookie| cookie.starts_with(name)), is_removed, "{pair}");
                jar.retain(|cookie| !cookie.starts_with(name));
                if !is_removed {
                    jar.push(pair.to_owned());
                }
            }
            assert!(jar.len() <= 5, "{jar:?}");
        }
        assert_eq!(jar.len(), 5);
    }

    async fn a_key_set_is_read_as_providers_publish_them(engine: Engine) {
        let key = Key::new("k");
        let (plain, without_id) = (key.public(), { let mut key = key.public(); key["kid"] = Value::Null; key });
        let encoded = |prefix: &[u8], engine: &dyn Fn(&[u8]) -> String| {
            let mut changed = key.public();
            for coordinate in ["x", "y"] {
                let bytes = URL_SAFE_NO_PAD.decode(plain[coordinate].as_str().expect("a text")).expect("Base64");
                changed[coordinate] = json!(engine(&[prefix, &bytes].concat()));
            }
            changed
        };
        let other = Key::new("other").public();
        let unused = { let mut key = key.public(); (key["use"], key["alg"]) = (Value::Null, Value::Null); key };
        for keys in [
            json!([encoded(&[0], &|bytes| URL_SAFE_NO_PAD.encode(bytes))]),
            json!([encoded(&[], &|bytes| STANDARD.encode(bytes))]),
            json!([other, without_id]),
            json!([unused, { "kty": "RSA", "kid": 7, "n": null }]),
        ] {
            let forged = Forged::start().await;
            let scene = scene(engine, &forged).await;
            let caller = Caller::of(&scene, "acme", &scene.node);
            forged.set(|answers| answers.keys = json_of(&json!({ "keys": keys })));
            let leaving = caller.leave("").await;
            let mut claims = forged.claims(&leaving);
            claims["azp"] = Value::Null;
            forged.set_token(&key.sign(&claims));
            caller.arrive(&forged.query(&leaving), &leaving.cookie, "/admin").await;
        }
    }

    async fn an_unverified_address_and_an_invisible_name_are_shown_nowhere(engine: Engine) {
        let forged = Forged::start().await;
        let scene = scene(engine, &forged).await;
        let caller = Caller::of(&scene, "acme", &scene.node);
        let key = Key::new("k");
        forged.set(|answers| answers.keys = json_of(&json!({ "keys": [key.public()] })));
        for (verified, name, shown) in [
            (json!("true"), "Ana", "<strong>7</strong>"),
            (json!(1), "ceo@acme.example", "<strong>7</strong>"),
            (json!(true), "A\u{200B}n\u{202E}a", "<strong>Ana</strong>"),
            (json!(true), "ceo@acme.example", "<strong>ana@acme.example</strong>"),
        ] {
            let leaving = caller.leave("").await;
            let mut claims = forged.claims(&leaving);
            (claims["email_verified"], claims["name"]) = (verified.clone(), json!(name));
            claims["preferred_username"] = json!("ceo@acme.example");
            forged.set_token(&key.sign(&claims));
            let callback = caller.back(&forged.query(&leaving), &leaving.cookie).send().await;
            let page = text(&caller.client.get(callback.header("location").expect("a page")).send().await);
            assert!(page.contains(shown) && !page.contains("ceo"), "{verified} {name}: {page}");
            assert_eq!(page.contains("ana@acme.example"), verified == true, "{verified}: {page}");
            let signed_in = caller.press(&callback, "/admin").await;
            let sessions = text(&signed_in.get("/admin/sessions").await);
            assert_eq!(sessions.contains("ana@acme.example"), verified == true, "{verified}: {sessions}");
            signed_in.post("/admin/sessions", &[("session", "all")]).await;
        }
    }

    async fn an_address_gives_a_role_only_if_it_is_verified(engine: Engine) {
        let forged = Forged::start().await;
        let folder = crate::support::folder::temporary("authority");
        let mut administration = administration(&forged.issuer(), &certificate::authority(folder.path()));
        administration["oidc"]["role_claim"] = "email".into();
        administration["oidc"]["admin_values"] = vec!["ana@acme.example"].into();
        let scene = Scene::of(Scene::site(engine).gateway("administration", administration));
        let caller = Caller::of(&scene, "acme", &scene.node);
        let key = Key::new("k");
        forged.set(|answers| answers.keys = json_of(&json!({ "keys": [key.public()] })));
        for verified in [json!(false), json!("true"), json!(1), Value::Null, json!(true)] {
            let leaving = caller.leave("").await;
            let mut claims = forged.claims(&leaving);
            claims["email_verified"] = verified.clone();
            forged.set_token(&key.sign(&claims));
            let callback = caller.back(&forged.query(&leaving), &leaving.cookie).send().await;
            assert_eq!(callback.status, if verified == true { 303 } else { 403 }, "{verified}: {callback:?}");
        }
    }

    async fn a_role_may_be_in_an_object_and_a_claim_with_that_whole_name_comes_first(engine: Engine) {
        let forged = Forged::start().await;
        let folder = crate::support::folder::temporary("authority");
        let mut administration = administration(&forged.issuer(), &certificate::authority(folder.path()));
        administration["oidc"]["role_claim"] = "realm_access.roles".into();
        let scene = Scene::of(Scene::site(engine).gateway("administration", administration));
        let caller = Caller::of(&scene, "acme", &scene.node);
        let key = Key::new("k");
        forged.set(|answers| answers.keys = json_of(&json!({ "keys": [key.public()] })));
        for (more, status) in [
            (json!({ "realm_access": { "roles": ["offline_access", "forms-admins"] } }), 303),
            (json!({ "realm_access": { "roles": ["offline_access"] } }), 403),
            (json!({ "realm_access": "forms-admins" }), 403),
            (json!({ "realm_access.roles": ["forms-admins"], "realm_access": { "roles": [] } }), 303),
            (json!({ "realm_access.roles": [], "realm_access": { "roles": ["forms-admins"] } }), 403),
            (json!({ "roles": ["forms-admins"] }), 403),
        ] {
            let leaving = caller.leave("").await;
            let mut claims = forged.claims(&leaving);
            claims["groups"] = Value::Null;
            more.as_object().expect("claims").iter().for_each(|(name, value)| claims[name] = value.clone());
            forged.set_token(&key.sign(&claims));
            let callback = caller.back(&forged.query(&leaving), &leaving.cookie).send().await;
            assert_eq!(callback.status, status, "{more}: {callback:?}");
        }
    }

    async fn an_unknown_key_is_looked_for_once_a_minute(engine: Engine) {
        let forged = Forged::start().await;
        let mut scene = scene(engine, &forged).await;
        let caller = Caller::of(&scene, "acme", &scene.node);
        let (first, second, third) = (Key::new("1"), Key::new("2"), Key::new("3"));
        let publish = |keys: &[&Key]| {
            let keys: Vec<_> = keys.iter().map(|key| key.public()).collect();
            forged.set(|answers| answers.keys = json_of(&json!({ "keys": keys })));
        };
        publish(&[&first]);
        for (key, published, reads) in [(&first, &[&first][..], 1), (&second, &[&first, &second], 2), (&first, &[], 2)] {
            if !published.is_empty() {
                publish(published);
            }
            let leaving = caller.leave("").await;
            forged.set_token(&key.sign(&forged.claims(&leaving)));
            caller.arrive(&forged.query(&leaving), &leaving.cookie, "/admin").await;
            assert_eq!(forged.asked("/keys"), reads);
        }
        publish(&[&first, &second, &third]);
        for _ in 0..5 {
            let leaving = caller.leave("").await;
            forged.set_token(&third.sign(&forged.claims(&leaving)));
            let answer = caller.back(&forged.query(&leaving), &leaving.cookie).send().await;
            assert_eq!(answer.status, 403, "{answer:?}");
        }
        assert_eq!(forged.asked("/keys"), 2, "made-up keys cost the provider nothing");
        scene.node.wait_for_lines(LOGGED, "the provider has no such key", 5);
    }
}

/// Bad answers, with what the log says of each.
fn bad_answers() -> Vec<(&'static str, Vec<Act>)> {
    let huge = format!("{{\"keys\":[\"{}\"]}}", "x".repeat(300 * 1024));
    vec![
        ("responded with status 500", Act::status(500)),
        ("responded with status 302", Act::answer(302, &["Location: https://evil.example/marker"], "")),
        ("is not usable", Act::answer(200, &[], "<html>marker</html>")),
        ("is not usable", Act::answer(200, &[], "")),
        ("gave no response: no valid answer", Act::answer(200, &[], &huge)),
        ("gave no response: no valid answer", vec![Act::send("marker\r\n\r\n"), Act::Close]),
        ("gave no response: no valid answer", vec![Act::Reset]),
        ("gave no response: the time limit ended", vec![Act::Hang]),
        ("the time limit ended", vec![Act::send("HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n{"), Act::Hang]),
    ]
}

/// That an answer is the page for a provider that fails, and that the log has the reason once.
fn assert_reported(scene: &mut Scene, answer: &Answer, what: &str, reason: &str) {
    assert_eq!(answer.status, 502, "{what} {reason}: {answer:?}");
    assert!(text(answer).contains("does not work just now") && !text(answer).contains("marker"), "{answer:?}");
    let log = scene.node.log();
    let line = log.lines().rfind(|line| line.contains("OpenID provider failed")).expect("a line");
    assert!(line.contains(&format!("the provider's {what} ")) && line.contains(reason), "{what} {reason}: {line}");
    assert!(!log.contains("marker"), "{log}");
}

/// Has a provider give one bad answer at each of its addresses, and then good ones.
async fn fail(forged: Forged, mut scene: Scene, reason: &str, acts: &[Act]) {
    let caller = Caller::of(&scene, "acme", &scene.node);
    forged.set(|answers| answers.metadata = acts.to_vec());
    let mut failures = 0;
    loop {
        let answer = caller.client.get("/admin/sign-in").send().await;
        assert_reported(&mut scene, &answer, "metadata", reason);
        let asked = forged.asked("/.well-known/");
        assert_eq!(caller.client.get("/admin/sign-in").send().await.status, 502);
        failures += 2;
        tokio::time::sleep(AGAIN).await;
        // For a moment, nothing is asked. That moment may be over on a busy machine, but not each time.
        if forged.asked("/.well-known/") == asked {
            break;
        }
        assert!(failures < 10, "a provider that failed is asked again at once");
    }
    let (key, metadata) = (Key::new("k"), json_of(&forged.metadata()));
    forged.set(|answers| answers.metadata = metadata);

    let leaving = caller.leave("").await;
    forged.set(|answers| answers.token = acts.to_vec());
    let answer = caller.back(&forged.query(&leaving), &leaving.cookie).send().await;
    assert_reported(&mut scene, &answer, "token endpoint", reason);

    let leaving = caller.leave("").await;
    forged.set(|answers| answers.keys = acts.to_vec());
    forged.set_token(&key.sign(&forged.claims(&leaving)));
    let answer = caller.back(&forged.query(&leaving), &leaving.cookie).send().await;
    assert_reported(&mut scene, &answer, "key set", reason);
    failures += 2;
    assert_eq!(scene.node.count_lines("OpenID provider failed"), failures, "each failure is logged once");
    assert_eq!(state(&scene).await, [0, 0]);

    tokio::time::sleep(AGAIN).await;
    let leaving = caller.leave("").await;
    forged.set(|answers| answers.keys = json_of(&json!({ "keys": [key.public()] })));
    forged.set_token(&key.sign(&forged.claims(&leaving)));
    caller.arrive(&forged.query(&leaving), &leaving.cookie, "/admin").await;
}

/// In time: before a request and the client give up. Several at once, since most of it is waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_provider_answers_a_page_says_so_in_time() {
    let answers = bad_answers();
    let mut failing = Vec::new();
    for (reason, acts) in &answers {
        let forged = Forged::start().await;
        let scene = scene(Engine::Sqlite, &forged).await;
        failing.push(fail(forged, scene, reason, acts));
    }
    // Those that hang take longest.
    failing.reverse();
    futures_util::stream::iter(failing).buffer_unordered(4).collect::<()>().await;
}

#[tokio::test]
async fn answers_that_fit_no_sign_in_share_the_limit_of_bad_tokens() {
    let forged = Forged::start().await;
    let folder = crate::support::folder::temporary("authority");
    let table = administration(&forged.issuer(), &certificate::authority(folder.path()));
    let limits: toml::Table = "bad_tokens_burst = 5\nbad_tokens_per_second = 1".parse().expect("TOML");
    let scene = Scene::of(Scene::site(Engine::Sqlite).gateway("limits", limits).gateway("administration", table));
    let caller = Caller::of(&scene, "acme", &scene.node);
    let mut statuses = Vec::new();
    // After a second, the address may try once more. A busy machine takes that long for a call, but not each time.
    for _ in 0..10 {
        let guess = |guess: u32| caller.back(&format!("state={guess}&code=x"), "").send();
        let answers = join_all((0..10).map(guess)).await;
        statuses.extend(answers.iter().map(|answer| answer.status.as_u16()));
        if caller.client.get("/admin/sign-in").send().await.status == 429 {
            assert!(statuses.contains(&400) && statuses.contains(&429), "{statuses:?}");
            assert!(statuses.iter().all(|status| [400, 429].contains(status)), "{statuses:?}");
            return;
        }
    }
    panic!("a sign-in begins after {statuses:?}");
}
