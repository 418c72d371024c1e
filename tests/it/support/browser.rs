//! A real Chromium without a window, driven through chromedriver, and the accessibility checks of axe-core.
//!
//! All hosts lead to this machine, and the test's certificates are taken without being known. What it shows is kept as
//! pictures in `screenshots` in the temporary folder of cargo, for whoever changes a page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use url::Url;

use super::child::{Child, bound_to_us, free_port};
use super::folder;

/// How long the driver may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The width and height of a phone that is as narrow as WCAG 2.2 asks for (success criterion 1.4.10).
const NARROW: (u32, u32) = (320, 700);

/// A browser window, closed on drop.
pub(crate) struct Browser {
    pub(crate) page: Client,
    _driver: Child,
    /// What the browser keeps, by which its process is recognized.
    profile: TempDir,
}

/// A driver that is killed leaves its browser behind, with the pipes that both had of the test.
impl Drop for Browser {
    fn drop(&mut self) {
        let mark = format!("--user-data-dir={}", self.profile.path().display());
        let processes = fs::read_dir("/proc").expect("Linux has /proc").flatten();
        let is_ours = |command: &[u8]| command.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes());
        for process in processes.filter(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|it| is_ours(&it))) {
            let id = process.file_name().to_string_lossy().into_owned();
            // It may just have ended.
            let _ = Command::new("sh").args(["-c", r#"kill -s KILL "$0" 2>/dev/null"#, &id]).status();
        }
    }
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    Light,
    Dark,
    Narrow,
    LargeText,
}

impl Look {
    pub(crate) const ALL: [Self; 4] = [Self::Light, Self::Dark, Self::Narrow, Self::LargeText];
}

/// A command of the browser that WebDriver does not have.
#[derive(Debug)]
struct Cdp(Value);

impl WebDriverCompatibleCommand for Cdp {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, url::ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.0.to_string()))
    }
}

fn axe() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients/node/node_modules/axe-core/axe.min.js")
}

impl Browser {
    /// Starts the driver and a browser that asks for English.
    pub(crate) async fn start() -> Self {
        Self::start_in("en-US,en").await
    }

    /// Starts the driver and a browser that asks for these languages.
    pub(crate) async fn start_in(languages: &str) -> Self {
        let port = free_port();
        let mut command = bound_to_us("chromedriver", "KILL", &[]);
        command.arg(format!("--port={port}"));
        let driver = Child::spawn(command);
        let profile = folder::temporary("browser");
        let arguments = [
            &*format!("--user-data-dir={}", profile.path().display()),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--ignore-certificate-errors",
            "--host-resolver-rules=MAP * 127.0.0.1",
            "--window-size=1280,900",
            "--hide-scrollbars",
        ];
        let mut capabilities = Capabilities::new();
        let preferences = json!({ "intl.accept_languages": languages });
        let options = json!({ "args": arguments, "binary": chromium(), "prefs": preferences });
        capabilities.insert("goog:chromeOptions".into(), options);
        capabilities.insert("acceptInsecureCerts".into(), true.into());
        let since = std::time::Instant::now();
        let mut connector = HttpConnector::new();
        // A command is two packets: with Nagle's algorithm, the second one waits 40 ms for an acknowledgement of the first.
        connector.set_nodelay(true);
        let page = loop {
            let mut builder = ClientBuilder::new(connector.clone());
            builder.capabilities(capabilities.clone());
            match builder.connect(&format!("http://127.0.0.1:{port}")).await {
                Ok(page) => break page,
                Err(error) => assert!(since.elapsed() < START_LIMIT, "no browser: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        Self { page, _driver: driver, profile }
    }

    async fn cdp(&self, command: &str, parameters: Value) {
        let command = Cdp(json!({ "cmd": command, "params": parameters }));
        self.page.issue_cmd(command).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Looks at pages in another way from now on.
    pub(crate) async fn look(&self, look: Look) {
        let scheme = if let Look::Dark = look { "dark" } else { "light" };
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.cdp("Emulation.setEmulatedMedia", json!({ "features": [feature] })).await;
        let (width, height) = if let Look::Narrow = look { NARROW } else { (1280, 900) };
        self.resize(width, height).await;
        let size = if let Look::LargeText = look { "200%" } else { "" };
        self.page.execute("document.documentElement.style.fontSize = arguments[0]", vec![size.into()]).await.unwrap();
    }

    /// Gives the page this many pixels from now on.
    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.cdp("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Keeps a picture of the whole page.
    pub(crate) async fn keep_picture(&self, name: &str, width: u32) {
        self.resize(width, 900).await;
        let height = self.script("return document.documentElement.scrollHeight").await;
        self.resize(width, height.as_u64().and_then(|height| u32::try_from(height).ok()).expect("a height")).await;
        fs::write(pictures().join(format!("{name}-{width}.png")), self.page.screenshot().await.unwrap()).unwrap();
        self.resize(width, 900).await;
    }

    /// Opens an address.
    pub(crate) async fn open(&self, url: &str) {
        self.page.goto(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    }

    /// The text of an element.
    pub(crate) async fn text(&self, css: &str) -> String {
        let found = self.page.find(Locator::Css(css)).await.unwrap_or_else(|error| panic!("{css}: {error}"));
        found.text().await.unwrap()
    }

    /// Clicks on an element.
    pub(crate) async fn click(&self, css: &str) {
        let found = self.page.find(Locator::Css(css)).await.unwrap_or_else(|error| panic!("{css}: {error}"));
        found.click().await.unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    /// Clicks on a link or a button that leads to another page, and waits until that is there.
    pub(crate) async fn follow(&self, css: &str) {
        self.leave_by(css, self.click(css)).await;
    }

    /// Does what leads to another page, and waits until that is there.
    pub(crate) async fn leave_by(&self, what: &str, act: impl Future<Output = ()>) {
        self.script("window.isBefore = true").await;
        act.await;
        let since = std::time::Instant::now();
        // Between two pages, no script runs.
        while !self
            .page
            .execute("return !window.isBefore && document.readyState === 'complete'", Vec::new())
            .await
            .is_ok_and(|is_next| is_next == json!(true))
        {
            assert!(since.elapsed() < START_LIMIT, "{what} leads nowhere");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Types into an element.
    pub(crate) async fn type_into(&self, css: &str, text: &str) {
        let found = self.page.find(Locator::Css(css)).await.unwrap_or_else(|error| panic!("{css}: {error}"));
        found.send_keys(text).await.unwrap();
    }

    /// Runs a script in the page, and returns what it returns.
    pub(crate) async fn script(&self, script: &str) -> Value {
        self.page.execute(script, Vec::new()).await.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// What axe-core finds wrong with the page as it looks now: the rule, what it asks for, and the elements.
    pub(crate) async fn violations(&self) -> Value {
        if self.script("return !window.axe").await == json!(true) {
            let axe = fs::read_to_string(axe()).expect("tests/run installs axe-core");
            self.script(&axe).await;
        }
        let run = "const done = arguments[arguments.length - 1]; axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', \
                   'wcag21aa', 'wcag22aa', 'best-practice'] }).then(result => done(result.violations.map(violation => \
                   [violation.id, violation.help, violation.nodes.map(node => node.html)])))";
        self.page.execute_async(run, Vec::new()).await.unwrap()
    }

    /// Asserts that the page is accessible in every look, and keeps pictures of it.
    pub(crate) async fn check_page(&self, name: &str) {
        let pictures = pictures();
        for look in Look::ALL {
            self.look(look).await;
            let [width, content] =
                ["innerWidth", "document.documentElement.scrollWidth"].map(|what| format!("return {what}"));
            let (width, content) = (self.script(&width).await, self.script(&content).await);
            assert!(content.as_u64() <= width.as_u64(), "{name} in {look:?} is {content} wide, the window {width}");
            assert_eq!(self.violations().await, json!([]), "{name} in {look:?}");
            let picture = self.page.screenshot().await.unwrap();
            fs::write(pictures.join(format!("{name}-{look:?}.png").to_lowercase()), picture).unwrap();
        }
        self.look(Look::Light).await;
    }
}

/// The folder of pictures.
fn pictures() -> PathBuf {
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    fs::create_dir_all(&pictures).unwrap();
    pictures
}

fn chromium() -> PathBuf {
    let known = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].map(PathBuf::from);
    known.into_iter().find(|path| path.exists()).expect("tests/run installs chromium")
}
