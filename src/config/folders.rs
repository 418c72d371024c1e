//! Folders of configuration files: resolves relative paths, and recognizes two paths of the same file.
//!
//! A path that does not exist is not an error here; the reader of the file reports it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

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
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
        if path.is_symlink()
            && let Ok(file) = path.canonicalize()
        {
            return file;
        }
        if let Some(known) = self.0.borrow().get(folder) {
            return known.join(name);
        }
        let true_path = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let identity = true_path.join(name);
        self.0.borrow_mut().insert(folder.to_owned(), true_path);
        identity
    }
}
