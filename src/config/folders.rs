//! Folders of configuration files: which one a relative path starts at, and which paths are one file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The folder to which the paths in a file are relative.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.parent().unwrap_or(Path::new("/")).to_owned()
}

/// Folders by their true paths. Most files of a gateway stand in few folders, and finding a true path asks the system
/// for each part of it.
#[derive(Default)]
pub(super) struct CanonicalFolders(RefCell<HashMap<PathBuf, PathBuf>>);

impl CanonicalFolders {
    /// What tells whether two paths are one file.
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
