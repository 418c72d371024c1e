//! Folders of configuration files: resolves relative paths, and recognizes two paths of the same file.
//!
//! A path that does not exist is not an error here; the reader of the file reports it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use crate::regular_file;

/// How many symbolic links of a path are followed: as many as Linux follows (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// The folder to which paths in a file are relative.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.parent().unwrap_or(Path::new("/")).to_owned()
}

/// A cache of canonical folder paths. Most files share a few folders, and canonicalizing a path costs a system call
/// for each of its components.
#[derive(Default)]
pub(super) struct CanonicalFolders(RefCell<HashMap<PathBuf, PathBuf>>);

impl CanonicalFolders {
    /// A path that is equal for two paths of the same file.
    pub(super) fn identity(&self, path: &Path) -> PathBuf {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return resolve(path) };
        if regular_file::link_metadata_often(path).is_ok_and(|data| data.is_symlink()) {
            return resolve_in_time(path, path);
        }
        if let Some(known) = self.0.borrow().get(folder) {
            return known.join(name);
        }
        let true_path = resolve_in_time(folder, path);
        let identity = true_path.join(name);
        self.0.borrow_mut().insert(folder.to_owned(), true_path);
        identity
    }
}

/// The same as [`resolve`] for a file or its folder, or the path itself if its file system does not answer.
fn resolve_in_time(path: &Path, file: &Path) -> PathBuf {
    let own = path.to_owned();
    regular_file::ask(file, move |_| Ok(resolve(&own))).unwrap_or_else(|_| path.to_owned())
}

/// The path to which another one leads, without links and `..`. Unlike `canonicalize`, resolves what does not exist yet: the
/// target of a link that leads to no file, and `none/..`, since missing folders are created.
fn resolve(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (mut resolved, mut waiting, mut links) = (PathBuf::new(), parts(&absolute), 0);
    while let Some(part) = waiting.pop() {
        if part == ".." {
            resolved.pop();
            continue;
        }
        // The root replaces what is there.
        let next = resolved.join(part);
        match next.read_link() {
            Ok(target) if links < MAX_LINKS => {
                links += 1;
                waiting.extend(parts(&target));
            }
            _ => resolved = next,
        }
    }
    resolved
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let is_part = |part: &Component<'_>| *part != Component::CurDir;
    path.components().rev().filter(is_part).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn two_paths_to_one_file_are_equal_whether_it_exists_or_not() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("data/inner")).unwrap();
        std::fs::write(root.join("data/there.db"), "").unwrap();
        symlink("data", root.join("folder")).unwrap();
        symlink(root.join("data/inner"), root.join("inner")).unwrap();
        for name in ["there.db", "missing.db", "later/missing.db"] {
            symlink(format!("./data/{name}"), root.join(format!("link {}", name.replace('/', " ")))).unwrap();
        }
        symlink("link missing.db", root.join("chain")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let folders = CanonicalFolders::default();
        for (target, paths) in [
            ("data/there.db", vec!["link there.db", "folder/there.db", "inner/../there.db", "none/../data/there.db"]),
            ("data/missing.db", vec!["link missing.db", "chain", "folder/./missing.db", "data/none/../missing.db"]),
            (
                "data/later/missing.db",
                vec!["link later missing.db", "inner/../later/missing.db", "folder/later/missing.db"],
            ),
            ("data", vec!["inner/..", "folder"]),
        ] {
            for path in paths {
                assert_eq!(folders.identity(&root.join(path)), root.join(target), "{path}");
            }
        }
        assert_eq!(folders.identity(&root.join("loop")), root.join("loop"));
        let here = Path::new("/proc/self/cwd/Cargo.toml");
        assert_eq!(folders.identity(here), std::env::current_dir().unwrap().canonicalize().unwrap().join("Cargo.toml"));
    }
}
