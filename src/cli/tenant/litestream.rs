//! Restores a SQLite file from its Litestream replica, by Litestream itself.
//!
//! `litestream restore` looks for the path of a file in its configuration, and does not find those of a folder (`dir`). So it is
//! given a configuration with this file alone, made from the entry that has the file or its folder. It is written as JSON, which
//! is YAML, and is readable by its owner only: it may have the keys of the object storage.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use crate::instant::Rfc3339Micros;
use crate::owner_only;

/// The program, of version 0.5 or newer, in the `PATH`.
const PROGRAM: &str = "litestream";

/// What only a folder has in its entry, or Litestream's own notes, which a restore does not need.
const OF_FOLDER: [&str; 6] = ["dir", "pattern", "recursive", "watch", "meta-dir", "meta-path"];

/// The replica of one file.
#[derive(Debug)]
pub(super) struct Replica {
    file: PathBuf,
    config: NamedTempFile,
}

/// A part of the replica, as `litestream ltx` lists it: some transactions, up to an instant, in whole seconds.
#[derive(Debug, Deserialize)]
struct Part {
    max_txid: String,
    timestamp: Timestamp,
}

/// What `litestream restore` says.
#[derive(Debug, Deserialize)]
struct Restored {
    txid: String,
}

impl Replica {
    /// The replica of a file, by a configuration of Litestream.
    pub(super) fn of(file: &Path, config: &Path) -> Result<Self> {
        let text = fs::read_to_string(config).with_context(|| format!("can't read {}", config.display()))?;
        let parsed: Map<String, Value> =
            yaml_serde::from_str(&text).with_context(|| format!("{} is not Litestream's", config.display()))?;
        let file = std::path::absolute(file)?;
        let Some(alone) = config_of(&parsed, &file) else {
            bail!("{} has no entry in `dbs` with the path {} or a folder of it", config.display(), file.display());
        };
        let mut config = NamedTempFile::with_prefix("formgate-litestream-")?;
        config.write_all(Value::from(alone).to_string().as_bytes())?;
        Ok(Self { file, config })
    }

    /// Restores the file as it was at an instant, into a new one. Returns the second of the last write that it has.
    pub(super) fn restore(&self, at: Timestamp, new: &Path) -> Result<Timestamp> {
        check_version()?;
        let file = self.file.display();
        let parts = self.run(&["ltx", "-json", "-level", "all"], &[])?;
        let parts: Vec<Part> = serde_json::from_str(&parts).context("`litestream ltx` printed no list")?;
        let times = || parts.iter().map(|part| part.timestamp);
        let (Some(first), Some(last)) = (times().min(), times().max()) else {
            bail!("the replica has no backup of {file}");
        };
        if at < first {
            bail!("the replica of {file} begins at {first}");
        }
        // Listed without the fraction.
        let last = last + jiff::SignedDuration::from_secs(1);
        if at > last {
            bail!(
                "the last write of {file} in the replica is from before {last}: if nothing was written since, restore to that \
                 instant"
            );
        }
        // Nobody else can read it meanwhile, and it appears whole: Litestream may watch this folder too.
        let folder = new.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        owner_only::create_folder(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
        let scratch = owner_only::create_temporary_folder_in(folder, ".formgate-restore-")?;
        let draft = scratch.path().join("restored");
        let (instant, path) = (Rfc3339Micros(at).to_string(), draft.display().to_string());
        let restored =
            self.run(&["restore", "-json", "-integrity-check", "quick", "-timestamp", &instant], &["-o", &path])?;
        let Restored { txid } = serde_json::from_str(&restored).context("`litestream restore` printed no result")?;
        self.give_to_owner(&draft)?;
        fs::hard_link(&draft, new).with_context(|| format!("can't write {}", new.display()))?;
        let of_last = parts.iter().filter(|part| part.max_txid == txid).map(|part| part.timestamp).min();
        Ok(of_last.unwrap_or(at))
    }

    /// Runs a command on the file, and returns what it printed.
    fn run(&self, command: &[&str], further: &[&str]) -> Result<String> {
        let mut litestream = Command::new(PROGRAM);
        litestream.args(command).arg("-config").arg(self.config.path()).args(further).arg(&self.file);
        output_of(&mut litestream)
    }

    /// Gives the new file the owner and the mode of the account's file.
    fn give_to_owner(&self, new: &Path) -> Result<()> {
        let before = fs::metadata(&self.file).with_context(|| format!("can't look at {}", self.file.display()))?;
        fs::set_permissions(new, before.permissions())?;
        // Only root may give a file away; for others it is theirs already.
        let _ = chown(new, Some(before.uid()), Some(before.gid()));
        Ok(())
    }
}

/// Removes a file that was restored in vain.
pub(super) fn remove(file: &Path) {
    for end in ["", "-wal", "-shm"] {
        let mut path = file.as_os_str().to_owned();
        path.push(end);
        let _ = fs::remove_file(path);
    }
}

fn check_version() -> Result<()> {
    let version = output_of(Command::new(PROGRAM).arg("version"))?;
    let version = version.trim().trim_start_matches('v');
    if ["0.3.", "0.4."].iter().any(|old| version.starts_with(old)) {
        bail!("the program `litestream` is {version}: replicas of a folder need 0.5 or newer");
    }
    Ok(())
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("there is no program `litestream` in the PATH: install it, 0.5 or newer, from https://litestream.io")
        }
        Err(error) => return Err(error).context("can't run `litestream`"),
    };
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let said = format!("{printed}\n{}", String::from_utf8_lossy(&output.stderr));
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        bail!("`litestream` failed: {last}");
    }
    Ok(printed)
}

/// The configuration with a file alone.
fn config_of(config: &Map<String, Value>, file: &Path) -> Option<Map<String, Value>> {
    let entries = config.get("dbs")?.as_array()?;
    let entry = entries.iter().filter_map(Value::as_object).find_map(|entry| entry_of(entry, file))?;
    let mut alone = config.clone();
    alone.insert("dbs".to_owned(), json!([entry]));
    // Only the result is printed to standard output.
    alone.insert("logging".to_owned(), json!({ "level": "warn", "stderr": true }));
    Some(alone)
}

/// What an entry says about a file, if it has the file or a folder of it.
fn entry_of(entry: &Map<String, Value>, file: &Path) -> Option<Map<String, Value>> {
    let names = |key: &str| entry.get(key).and_then(Value::as_str).map(PathBuf::from);
    let same = |path: PathBuf| [path.canonicalize().unwrap_or_default(), path];
    let files = [file.canonicalize().unwrap_or_default(), file.to_owned()];
    if names("path")
        .is_some_and(|path| same(path).iter().any(|path| !path.as_os_str().is_empty() && files.contains(path)))
    {
        let mut found = entry.clone();
        found.insert("path".to_owned(), file.to_str()?.into());
        return Some(found);
    }
    let folders = same(names("dir")?);
    let within = |folder: &PathBuf| {
        let folder = Some(folder).filter(|folder| !folder.as_os_str().is_empty())?;
        files.iter().find_map(|file| file.strip_prefix(folder).ok())
    };
    let below = folders.iter().find_map(within)?.to_str()?.to_owned();
    let mut found = entry.clone();
    for key in OF_FOLDER {
        found.remove(key);
    }
    found.insert("path".to_owned(), file.to_str()?.into());
    if let Some(replica) = found.get_mut("replica") {
        append(replica.as_object_mut()?, &below);
    }
    for replica in found.get_mut("replicas").and_then(Value::as_array_mut).into_iter().flatten() {
        append(replica.as_object_mut()?, &below);
    }
    Some(found)
}

/// The place of a file in the replica of its folder.
fn append(replica: &mut Map<String, Value>, below: &str) {
    if let Some(url) = replica.get("url").and_then(Value::as_str) {
        let (place, query) = url.split_once('?').map_or((url, None), |(place, query)| (place, Some(query)));
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let url = format!("{}/{below}{query}", place.trim_end_matches('/'));
        replica.insert("url".to_owned(), url.into());
    } else {
        let path = replica.get("path").and_then(Value::as_str).map(|path| format!("{}/", path.trim_end_matches('/')));
        replica.insert("path".to_owned(), format!("{}{below}", path.unwrap_or_default()).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(config: &str, file: &str) -> Option<Value> {
        let parsed: Map<String, Value> = yaml_serde::from_str(config).expect("YAML");
        config_of(&parsed, Path::new(file)).map(|alone| alone["dbs"].clone())
    }

    #[test]
    fn the_entry_of_a_folder_becomes_that_of_a_file() {
        let config = "
            snapshot: {interval: 24h}
            dbs:
              - path: /srv/other.db
                replica: {url: 's3://other/db'}
              - dir: /srv/tenants
                pattern: '*.db'
                watch: true
                meta-dir: /srv/notes
                busy-timeout: 5s
                replica:
                  type: s3
                  bucket: ${BUCKET}
                  path: formgate/";
        let replica = json!({ "type": "s3", "bucket": "${BUCKET}", "path": "formgate/eu/acme.db" });
        let file = "/srv/tenants/eu/acme.db";
        let entry = json!([{ "busy-timeout": "5s", "replica": replica, "path": file }]);
        assert_eq!(entries(config, file), Some(entry));
        assert_eq!(entries(config, "/srv/other.db").expect("an entry")[0]["replica"]["url"], "s3://other/db");
        assert_eq!(entries(config, "/srv/tenants.db"), None);
        assert_eq!(entries("dbs:", "/srv/tenants.db"), None);
    }

    #[test]
    fn the_place_in_a_replica_is_below_its_url_or_path() {
        let place = |replica: &str| {
            let config = format!("dbs: [{{dir: /srv, pattern: '*', replica: {replica}}}]");
            entries(&config, "/srv/acme.db").expect("an entry")[0]["replica"].clone()
        };
        assert_eq!(place("{url: 's3://b/x?region=eu'}"), json!({ "url": "s3://b/x/acme.db?region=eu" }));
        assert_eq!(place("{type: file, path: /backup}"), json!({ "type": "file", "path": "/backup/acme.db" }));
        assert_eq!(place("{type: s3, bucket: b}"), json!({ "type": "s3", "bucket": "b", "path": "acme.db" }));
    }
}
