//! Creates files and folders that only their owner may read, and checks whether others may.
//!
//! Owns the modes of files that formgate creates and that hold secrets: a SQLite file (SQLite gives its WAL and
//! shared memory the same mode), and the folders of such files. The mode is set at creation rather than afterwards,
//! so there is no moment with another one. An existing file keeps its mode: others may have access on purpose, and
//! `formgate check` warns about it.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tempfile::TempDir;

/// Creates a folder and its missing parents.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a temporary folder, which is removed on drop.
pub(crate) fn create_temporary_folder(prefix: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(0o700)).tempdir()
}

/// The same within a folder.
pub(crate) fn create_temporary_folder_in(folder: &Path, prefix: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(0o700)).tempdir_in(folder)
}

/// Creates an empty file if there is none. An existing file is not even opened: closing it would release the locks
/// that SQLite holds on it in this process (fcntl(2)).
pub(crate) fn create_file(path: &Path) -> io::Result<()> {
    if path.exists() { Ok(()) } else { open(path).map(drop) }
}

/// Writes a file, replacing its content.
pub(crate) fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = open(path)?;
    file.set_len(0)?;
    io::Write::write_all(&mut file, content)
}

fn open(path: &Path) -> io::Result<File> {
    // Not `create_new`: the path may be a symbolic link to a file that does not exist yet.
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// The mode of a file, if it has any of these bits; `None` also if the metadata can't be read.
pub(crate) fn exposed_by(path: &Path, bits: u32) -> Option<u32> {
    let mode = path.metadata().ok()?.permissions().mode() & 0o777;
    (mode & bits != 0).then_some(mode)
}

/// Read, write or execute permission for users other than the owner and the group.
pub(crate) const OTHERS: u32 = 0o007;

/// The same, or write permission for the group.
pub(crate) const OTHERS_OR_GROUP_WRITE: u32 = 0o027;

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn created_files_are_owner_only_and_existing_files_keep_their_mode() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        create_folder(&inner).unwrap();
        assert_eq!([mode(&inner), mode(&folder.path().join("a"))], [0o700; 2]);

        let (file, link, open) = (inner.join("file"), inner.join("link"), inner.join("open"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        create_file(&link).unwrap();
        assert_eq!(mode(&file), 0o600, "also through a link");
        std::fs::write(&open, "content").unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o644)).unwrap();
        create_file(&open).unwrap();
        assert_eq!((mode(&open), std::fs::read(&open).unwrap()), (0o644, b"content".to_vec()));
        assert_eq!((exposed_by(&open, OTHERS), exposed_by(&file, OTHERS_OR_GROUP_WRITE)), (Some(0o644), None));
        write_file(&open, b"new").unwrap();
        assert_eq!(std::fs::read(&open).unwrap(), b"new");
    }
}
