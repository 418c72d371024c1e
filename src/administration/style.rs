//! The style sheet and the icon, under names that contain their digests, so that browsers may keep them for good.

use std::sync::LazyLock;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CACHE_CONTROL, HeaderValue};
use sha2::{Digest, Sha256};

use super::protection::{Referrer, hex, protect};
use crate::error::Refusal;
use crate::reply::{ContentType, Reply};

/// A file that every page uses.
struct Asset {
    name: String,
    kind: ContentType,
    content: Bytes,
}

impl Asset {
    fn new(stem: &str, extension: &str, kind: ContentType, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let digest = hex(&Sha256::digest(&content)[..8]);
        Self { name: format!("{stem}-{digest}.{extension}"), kind, content }
    }
}

static SHEET: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("style", "css", ContentType::Css, compact(include_str!("style.css"))));

static ICON: LazyLock<Asset> = LazyLock::new(|| Asset::new("icon", "svg", ContentType::Svg, include_str!("icon.svg")));

/// A style sheet without comments of whole lines, line ends and the blanks around punctuation.
fn compact(sheet: &str) -> String {
    let lines = sheet.lines().map(str::trim).filter(|line| !line.starts_with("/*"));
    let blanks = [(": ", ":"), ("; ", ";"), (", ", ","), (" {", "{"), ("{ ", "{"), (" }", "}")];
    blanks.iter().fold(lines.collect(), |sheet: String, (wide, narrow)| sheet.replace(wide, narrow))
}

/// The paths of the style sheet and the icon below that of the area.
pub(super) fn paths() -> (String, String) {
    (format!("/style/{}", SHEET.name), format!("/style/{}", ICON.name))
}

/// The file with a name.
pub(super) fn answer(name: &str) -> Result<Reply, Refusal> {
    let asset = [&SHEET, &ICON].into_iter().find(|asset| asset.name == name).ok_or(Refusal::UnknownPath)?;
    let reply = Reply::of_type(StatusCode::OK, asset.kind, asset.content.clone());
    let cached = HeaderValue::from_static("public, max-age=31536000, immutable");
    Ok(protect(reply, Referrer::SameOrigin).with_header(CACHE_CONTROL, cached))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_sheet_is_small_and_loads_nothing() {
        let sheet = std::str::from_utf8(&SHEET.content).unwrap();
        assert!(sheet.len() < 8 * 1024, "{} bytes", sheet.len());
        assert!(!sheet.contains("url(") && !sheet.contains("@import"));
    }

    #[test]
    fn a_compact_sheet_says_the_same() {
        let sheet = "/* Why. */\na:hover, td .b { margin: 0 1px; color: red }\n@media (width > 2rem) {\n  & {\n    top: 0;\n  }\n}\n";
        assert_eq!(compact(sheet), "a:hover,td .b{margin:0 1px;color:red}@media (width > 2rem){&{top:0;}}");
    }

    #[test]
    fn only_the_current_names_lead_to_a_file() {
        assert!(answer(&SHEET.name).is_ok() && answer(&ICON.name).is_ok());
        assert!(answer("style.css").is_err() && answer("style-0000000000000000.css").is_err());
    }
}
