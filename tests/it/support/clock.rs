//! Another clock for a process: a library that is loaded before the C library.

use std::fs;
use std::path::{Path, PathBuf};

/// The library that gives a process another time.
pub(crate) fn library() -> PathBuf {
    let found = glob::glob("/usr/lib/*/faketime/libfaketime.so.1").expect("a pattern").flatten().next();
    found.expect("libfaketime is not installed (Debian: apt-get install libfaketime, or run tests/run)")
}

/// The clock of a machine, which steps while processes run. What measures how long something took does not step.
pub(crate) struct SteppingClock {
    preload: PathBuf,
    offset: PathBuf,
}

impl SteppingClock {
    /// A clock that is right. The folder must outlive the processes.
    pub(crate) fn new(folder: &Path) -> Self {
        let clock = Self { preload: library(), offset: folder.join("clock") };
        clock.step("+0");
        clock
    }

    /// Steps to an offset from the right time: `+3d`, `-2h`.
    pub(crate) fn step(&self, offset: &str) {
        let draft = self.offset.with_extension("draft");
        fs::write(&draft, format!("{offset}\n")).expect("the folder can be written");
        fs::rename(&draft, &self.offset).expect("the folder can be written");
    }

    /// The environment of a process with this clock.
    pub(crate) fn environment(&self) -> [(&str, &str); 4] {
        let [preload, offset] = [&self.preload, &self.offset].map(|path| path.to_str().expect("a UTF-8 name"));
        [
            ("LD_PRELOAD", preload),
            ("FAKETIME_TIMESTAMP_FILE", offset),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }
}
