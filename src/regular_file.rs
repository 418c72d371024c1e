//! Reads files whose paths come from a configuration or a caller of the operator API.
//!
//! Such a path may lead to a named pipe, a device, a file of any size, or a file system that does not answer. So only regular
//! files are read, up to a limit, and for at most [`TIME_LIMIT`]: a file of one tenant never holds up a reload, a caller or
//! the end of the process.
//!
//! A system call that hangs can't be interrupted. So a thread of its own reads, and is left behind when the time is up. Other
//! files of the folder are then refused at once until that thread is done: a folder that hangs costs one wait and few threads.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The largest PEM file, in bytes.
///
/// Larger: a mistyped path occupies more memory. Smaller: bundles of very many certificate authorities are refused.
pub(crate) const MAX_PEM: u64 = 4 * 1024 * 1024;

/// The largest file of tenants, in bytes.
///
/// Larger: a mistyped path occupies more memory. Smaller: one file can't hold 100,000 tenants.
pub(crate) const MAX_TENANTS: u64 = 64 * 1024 * 1024;

/// How long reading a file may take.
///
/// Larger: a file system that does not answer delays reloads and callers for longer. Smaller: files on slow disks are refused.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long a thread waits for another file.
///
/// Larger: threads that read nothing stay for longer. Smaller: a configuration of many files starts threads again and again.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// Reads a regular file of at most `limit` bytes. Blocks for at most [`TIME_LIMIT`].
///
/// # Errors
/// The system's, or a description of what is not as it should be; neither contains the path.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_within(path, limit, TIME_LIMIT, read_here)
}

/// Fails as [`read`] would for what is no regular file or too large.
pub(crate) fn check(path: &Path, limit: u64) -> io::Result<()> {
    open(path, limit).map(drop)
}

/// Opens a file without waiting for another process, as opening a pipe does.
fn open(path: &Path, limit: u64) -> io::Result<(File, u64)> {
    // Before opening as well, which has an effect on some devices.
    check_metadata(&path.metadata()?, limit)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let size = check_metadata(&file.metadata()?, limit)?;
    Ok((file, size))
}

/// The size of a file that may be read.
fn check_metadata(data: &Metadata, limit: u64) -> io::Result<u64> {
    if data.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if !data.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    if data.len() > limit { Err(too_large(limit)) } else { Ok(data.len()) }
}

fn too_large(limit: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("larger than {} MiB", limit / (1024 * 1024)))
}

fn read_here(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let (file, size) = open(path, limit)?;
    let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    // The file may grow, and files of /proc have a length of 0.
    file.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit { Err(too_large(limit)) } else { Ok(content) }
}

type ReadFile = fn(&Path, u64) -> io::Result<Vec<u8>>;

/// A file to read, and where its content goes.
struct Job {
    path: PathBuf,
    limit: u64,
    read: ReadFile,
    done: SyncSender<io::Result<Vec<u8>>>,
}

/// The threads that read.
struct Readers {
    /// The ways to those that wait for a file, or have ended.
    idle: Vec<Sender<Job>>,
    /// How many threads were left behind, by folder; `None` until the first.
    hanging: Option<HashMap<PathBuf, usize>>,
}

static READERS: Mutex<Readers> = Mutex::new(Readers { idle: Vec::new(), hanging: None });

fn readers() -> MutexGuard<'static, Readers> {
    // Each change is a single call.
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_owned()
}

fn read_within(path: &Path, limit: u64, time_limit: Duration, read: ReadFile) -> io::Result<Vec<u8>> {
    if readers().hanging.as_ref().is_some_and(|hanging| hanging.contains_key(&folder(path))) {
        return Err(io::Error::new(ErrorKind::TimedOut, "another file of its folder is not read in time"));
    }
    let (done, outcome) = sync_channel(1);
    let reader = hand_over(Job { path: path.to_owned(), limit, read, done })?;
    let outcome = match outcome.recv_timeout(time_limit) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the thread that read it ended")),
        Err(RecvTimeoutError::Timeout) => {
            let mut readers = readers();
            // The thread sends under the same lock, so either its outcome is here or it finds that nobody waits.
            let Ok(outcome) = outcome.try_recv() else {
                *readers.hanging.get_or_insert_default().entry(folder(path)).or_default() += 1;
                drop(outcome);
                let text = format!("not read within {} s", time_limit.as_secs_f32());
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            };
            outcome
        }
    };
    readers().idle.push(reader);
    outcome
}

/// Gives a file to a thread that waits for one, or to a new one.
fn hand_over(mut job: Job) -> io::Result<Sender<Job>> {
    loop {
        let Some(reader) = readers().idle.pop() else { break };
        match reader.send(job) {
            Ok(()) => return Ok(reader),
            // It has ended.
            Err(unsent) => job = unsent.0,
        }
    }
    let (reader, jobs) = channel();
    std::thread::Builder::new().name("files".to_owned()).spawn(move || read_all(&jobs))?;
    // The thread waits for its first file.
    reader.send(job).map_err(|_| io::Error::other("the thread that reads files ended"))?;
    Ok(reader)
}

fn read_all(jobs: &Receiver<Job>) {
    while let Ok(Job { path, limit, read, done }) = jobs.recv_timeout(IDLE_LIMIT) {
        let outcome = read(&path, limit);
        let mut readers = readers();
        if done.send(outcome).is_ok() {
            continue;
        }
        // Nobody waits any more.
        if let Some(hanging) = &mut readers.hanging
            && let Some(count) = hanging.get_mut(&folder(&path))
        {
            *count -= 1;
            if *count == 0 {
                hanging.remove(&folder(&path));
            }
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::os::unix::fs::symlink(at("pipe"), at("link to a pipe")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        File::create(at("large")).unwrap().set_len(600 * 1024 * 1024).unwrap();
        let began = Instant::now();
        for name in ["file", "link"] {
            assert_eq!(read(&at(name), 4).unwrap(), b"text", "{name}");
            assert_eq!(read(&at(name), 3).unwrap_err().kind(), ErrorKind::FileTooLarge, "{name}");
        }
        assert_eq!(read(folder.path(), MAX_PEM).unwrap_err().kind(), ErrorKind::IsADirectory);
        for path in [at("pipe"), at("link to a pipe"), at("socket"), "/dev/zero".into()] {
            let error = read(&path, MAX_PEM).unwrap_err();
            assert_eq!(error.to_string(), "not a regular file", "{}", path.display());
        }
        assert_eq!(read(&at("large"), MAX_PEM).unwrap_err().to_string(), "larger than 4 MiB");
        assert_eq!(read(&at("none"), MAX_PEM).unwrap_err().kind(), ErrorKind::NotFound);
        // Its length is 0 by its metadata.
        assert!(read(Path::new("/proc/self/status"), MAX_PEM).is_ok_and(|text| !text.is_empty()));
        assert_eq!(read(Path::new("/proc/self/status"), 16).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(began.elapsed() < TIME_LIMIT);
    }

    #[test]
    fn a_file_that_can_not_be_read_to_its_end_is_given_up_with_its_folder_until_it_ends() {
        fn hang(path: &Path, _limit: u64) -> io::Result<Vec<u8>> {
            while path.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(Vec::new())
        }
        let (hung, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let paths = [hung.path().join("held"), hung.path().join("file"), other.path().join("file")];
        paths.iter().for_each(|path| std::fs::write(path, "text").unwrap());
        let [held, next_to_it, elsewhere] = &paths;
        let error = read_within(held, MAX_PEM, Duration::from_millis(20), hang).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "not read within 0.02 s"));
        assert_eq!(read(next_to_it, MAX_PEM).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(read(elsewhere, MAX_PEM).unwrap(), b"text");
        std::fs::remove_file(held).unwrap();
        let began = Instant::now();
        while read(next_to_it, MAX_PEM).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "the thread has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
