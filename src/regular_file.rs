//! Reads files whose paths come from a configuration or a caller of the operator API, and asks about them.
//!
//! Such a path may lead to a named pipe, a device, a file of any size, or a file system that does not answer. So only regular
//! files are read, up to a limit, and for at most [`TIME_LIMIT`]: a file of one tenant never holds up a reload, a caller or
//! the end of the process.
//!
//! A system call that hangs can't be interrupted, and `stat` hangs as `read` does. So a separate thread makes the call, and is
//! abandoned when the time is up. Until that thread returns, other files of the folder are refused at once: a folder that hangs
//! costs one wait and few threads. Files that are checked with each request need no such thread if their file system is local
//! ([`metadata_often`]).

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::runtime::{Handle, RuntimeFlavor};

/// The largest PEM file, in bytes.
///
/// Larger: a mistyped path occupies more memory. Smaller: bundles of very many certificate authorities are refused.
pub(crate) const MAX_PEM: u64 = 4 * 1024 * 1024;

/// The largest file of tenants, in bytes.
///
/// Larger: a mistyped path occupies more memory, of which the parser takes up to eighty times the file. Smaller: one file
/// can't hold 10,000 tenants that use some optional keys.
pub(crate) const MAX_TENANTS: u64 = 8 * 1024 * 1024;

/// How long reading a file may take.
///
/// Larger: a file system that does not answer delays reloads and callers for longer. Smaller: files on slow disks are refused.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long a call blocks its thread before the runtime moves the thread's other tasks to another one.
///
/// Larger: a file system that does not answer delays other requests. Smaller: each slow file moves tasks.
const SOON: Duration = Duration::from_millis(2);

/// How long the search of a folder may take.
///
/// Larger: a file system that does not answer delays reloads for longer. Smaller: folders with very many files are refused.
const SEARCH_LIMIT: Duration = Duration::from_secs(20);

/// How long it is cached whether a file system is local.
///
/// Larger: a newly mounted one is noticed later. Smaller: more calls on separate threads.
const LOCAL_LIFETIME: Duration = Duration::from_secs(60);

/// How long an idle thread waits for the next call.
///
/// Larger: idle threads stay for longer. Smaller: reading a configuration of many files starts more threads.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// Reads a regular file of at most `limit` bytes. Blocks for at most [`TIME_LIMIT`].
///
/// # Errors
/// The system's, or a description of what is wrong; neither contains the path.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    ask(path, move |path| read_here(path, limit))
}

/// Fails as [`read`] would if the file is not regular or too large.
pub(crate) fn check(path: &Path, limit: u64) -> io::Result<()> {
    ask(path, move |path| open(path, limit).map(drop))
}

/// The metadata of a path; follows links. Blocks for at most [`TIME_LIMIT`].
pub(crate) fn metadata(path: &Path) -> io::Result<Metadata> {
    ask(path, Path::metadata)
}

/// The metadata of a folder. If it hangs, other files of its parent folder are still read.
pub(crate) fn metadata_of_folder(folder: &Path) -> io::Result<Metadata> {
    let own = folder.to_owned();
    ask(&folder.join("*"), move |_| own.metadata())
}

/// Whether a path exists. Blocks for at most [`TIME_LIMIT`].
pub(crate) fn exists(path: &Path) -> bool {
    metadata(path).is_ok()
}

/// The result of a system call about a path. Blocks for at most [`TIME_LIMIT`].
///
/// # Errors
/// Those of the call; [`ErrorKind::TimedOut`].
pub(crate) fn ask<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    ask_within(path, TIME_LIMIT, call)
}

/// The result of a search in a folder. Blocks for at most [`SEARCH_LIMIT`].
///
/// # Errors
/// As for [`ask`].
pub(crate) fn search<T: Send + 'static>(
    folder: &Path,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    ask_within(folder, SEARCH_LIMIT, call)
}

/// The metadata of a file that is checked often: without a separate thread if its file system is local.
///
/// # Errors
/// As for [`ask`].
pub(crate) fn metadata_often(path: &Path) -> io::Result<Metadata> {
    if is_local(path, path) { path.metadata() } else { metadata(path) }
}

/// The same, without following a link.
///
/// # Errors
/// As for [`ask`].
pub(crate) fn link_metadata_often(path: &Path) -> io::Result<Metadata> {
    let folder = path.parent().unwrap_or(path);
    if is_local(folder, path) { path.symlink_metadata() } else { ask(path, Path::symlink_metadata) }
}

/// Whether a file, or the folder of `path`, is on a local file system, which answers from memory. A network or FUSE file system
/// may not answer.
fn is_local(place: &Path, path: &Path) -> bool {
    static KNOWN: Mutex<Option<HashMap<PathBuf, (Instant, bool)>>> = Mutex::new(None);
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, is_local)) = lock().get_or_insert_default().get(place)
        && at.elapsed() < LOCAL_LIFETIME
    {
        return *is_local;
    }
    let asked = place.to_owned();
    let is_local = ask(path, move |_| Ok(is_local_now(&asked))).unwrap_or(false);
    let mut known = lock();
    let known = known.get_or_insert_default();
    if known.len() == known.capacity() {
        known.retain(|_, (at, _)| at.elapsed() < LOCAL_LIFETIME);
    }
    known.insert(place.to_owned(), (Instant::now(), is_local));
    is_local
}

#[cfg(target_os = "linux")]
fn is_local_now(place: &Path) -> bool {
    /// The file systems of disks and of memory, and layers of them (statfs(2), linux/magic.h): ext2 to ext4, XFS, Btrfs, F2FS,
    /// ZFS, bcachefs, tmpfs, ramfs, overlayfs, SquashFS, EROFS.
    const LOCAL: [u32; 11] = [
        0xEF53,
        0x5846_5342,
        0x9123_683E,
        0xF2F5_2010,
        0x2FC1_2FC1,
        0xCA45_1A4E,
        0x0102_1994,
        0x8584_58F6,
        0x794C_7630,
        0x7371_7368,
        0xE0F5_E1E2,
    ];
    let folder = || rustix::fs::statfs(place.parent()?).ok();
    let found = rustix::fs::statfs(place).ok().or_else(folder);
    found.is_some_and(|found| u32::try_from(found.f_type).is_ok_and(|kind| LOCAL.contains(&kind)))
}

/// Other systems name them otherwise.
#[cfg(not(target_os = "linux"))]
fn is_local_now(_place: &Path) -> bool {
    false
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

/// A system call about a path. `call` returns whether its outcome was received.
struct Job {
    path: PathBuf,
    call: Box<dyn FnOnce(&Path) -> bool + Send>,
}

/// The threads that read.
struct Readers {
    /// The channels to idle threads, some of which may have ended.
    idle: Vec<Sender<Job>>,
    /// The number of abandoned threads by folder; `None` until the first.
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

fn ask_within<T: Send + 'static>(
    path: &Path,
    time_limit: Duration,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if readers().hanging.as_ref().is_some_and(|hanging| hanging.contains_key(&folder(path))) {
        return Err(io::Error::new(ErrorKind::TimedOut, "another file of its folder is not read in time"));
    }
    let (done, outcome) = sync_channel(1);
    let call = move |path: &Path| {
        let outcome = call(path);
        // Under the lock, see below.
        let _readers = readers();
        done.send(outcome).is_ok()
    };
    let reader = hand_over(Job { path: path.to_owned(), call: Box::new(call) })?;
    let soon = outcome.recv_timeout(SOON.min(time_limit));
    let received = match soon {
        Err(RecvTimeoutError::Timeout) => beside_others(|| outcome.recv_timeout(time_limit.saturating_sub(SOON))),
        received => received,
    };
    let outcome = match received {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the thread that read it ended")),
        Err(RecvTimeoutError::Timeout) => {
            let mut readers = readers();
            // The thread sends under the same lock, so either its outcome is here or it finds that nobody waits.
            let Ok(found) = outcome.try_recv() else {
                *readers.hanging.get_or_insert_default().entry(folder(path)).or_default() += 1;
                drop(outcome);
                let text = format!("not read within {} s", time_limit.as_secs_f32());
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            };
            found
        }
    };
    readers().idle.push(reader);
    outcome
}

/// Waits without blocking the other tasks of this thread, if it runs tasks.
fn beside_others<R>(wait: impl FnOnce() -> R) -> R {
    let runs_tasks = Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if runs_tasks { tokio::task::block_in_place(wait) } else { wait() }
}

/// Gives a job to an idle thread, or to a new one.
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
    while let Ok(Job { path, call }) = jobs.recv_timeout(IDLE_LIMIT) {
        if call(&path) {
            continue;
        }
        let mut readers = readers();
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
    fn what_the_system_makes_up_is_no_file_system_of_a_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("none");
        assert!(is_local(&file, &file) && is_local(folder.path(), &file), "tests run on a disk or in memory");
        for place in ["/proc/self", "/proc/none"] {
            assert!(!is_local(Path::new(place), Path::new(place)), "{place}");
        }
    }

    #[test]
    fn a_file_that_can_not_be_read_to_its_end_is_given_up_with_its_folder_until_it_ends() {
        fn hang(path: &Path) -> io::Result<Vec<u8>> {
            while path.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(Vec::new())
        }
        let (hung, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let paths = [hung.path().join("held"), hung.path().join("file"), other.path().join("file")];
        paths.iter().for_each(|path| std::fs::write(path, "text").unwrap());
        let [held, next_to_it, elsewhere] = &paths;
        let error = ask_within(held, Duration::from_millis(20), hang).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "not read within 0.02 s"));
        assert_eq!(read(next_to_it, MAX_PEM).unwrap_err().kind(), ErrorKind::TimedOut);
        for refused in [metadata(next_to_it).map(drop), check(next_to_it, MAX_PEM), ask(held, |_| Ok(()))] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        assert!(!exists(next_to_it));
        assert_eq!(read(elsewhere, MAX_PEM).unwrap(), b"text");
        std::fs::remove_file(held).unwrap();
        let began = Instant::now();
        while read(next_to_it, MAX_PEM).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "the thread has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
