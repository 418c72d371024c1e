//! A disk that does not finish to sync: a library that a node loads before the C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// SQLite syncs with these two. Each waits for as long as the file that `HELD_DISK` names exists.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for_disk(void) {
  const char *held = getenv("HELD_DISK");
  while (held && access(held, F_OK) == 0) usleep(1000);
}

int fsync(int fd) {
  wait_for_disk();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
  wait_for_disk();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
"#;

/// The disk of the nodes that load the library.
pub(crate) struct SlowDisk {
    library: PathBuf,
    held: PathBuf,
}

impl SlowDisk {
    /// A disk that syncs. The folder must outlive the nodes.
    pub(crate) fn build(folder: &Path) -> Self {
        let (source, library) = (folder.join("slow_disk.c"), folder.join("slow_disk.so"));
        fs::write(&source, SOURCE).expect("the folder can be written");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
        assert!(built.expect("a C compiler is there").success());
        Self { library, held: folder.join("held") }
    }

    /// The environment of a node on this disk.
    pub(crate) fn environment(&self) -> [(&str, &str); 2] {
        let Self { library, held } = self;
        let [library, held] = [library, held].map(|path| path.to_str().expect("the folder has a UTF-8 name"));
        [("LD_PRELOAD", library), ("HELD_DISK", held)]
    }

    /// From now on, nothing is synced.
    pub(crate) fn hold(&self) {
        fs::write(&self.held, "").expect("the folder can be written");
    }

    /// What waits is synced.
    pub(crate) fn release(&self) {
        fs::remove_file(&self.held).expect("it is held");
    }
}
