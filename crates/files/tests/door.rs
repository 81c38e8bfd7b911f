//! Any kind of file at a path: no call blocks, and no read exceeds its limit.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testing::Scratch;

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn what_is_no_file_is_refused_at_once_and_by_its_name() {
    let directory = Scratch::new("files-kinds");
    let pipe = directory.join("pipe");
    fifo(&pipe);
    let link = directory.join("link");
    symlink("/dev/zero", &link).unwrap();
    let socket = directory.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let table: [(&Path, &str); 7] = [
        (&pipe, "a pipe"),
        (&directory, "a directory"),
        (&link, "a device"),
        (Path::new("/dev/zero"), "a device"),
        (Path::new("/dev/null"), "a device"),
        (Path::new("/dev/tty"), "a device"),
        (&socket, "a socket"),
    ];
    let begun = Instant::now();
    for (path, what) in table {
        let append = |path: &Path| files::append(path).map(|_| Vec::new());
        let text = |path: &Path| files::read_text(path, 1 << 30).map(String::into_bytes);
        for read in [&|path: &Path| files::read(path, 1 << 30) as io::Result<Vec<u8>>, &text, &append]
            as [&dyn Fn(&Path) -> io::Result<Vec<u8>>; 3]
        {
            let error = read(path).expect_err("it is no file");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}: {error}", path.display());
            assert!(error.to_string().contains(what), "{}: {error}", path.display());
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(120), "a call blocked");
}

#[test]
fn a_file_is_read_whole_or_not_at_all() {
    let directory = Scratch::new("files-caps");
    let path = directory.join("file");
    fs::write(&path, b"12345").unwrap();
    assert_eq!(files::read(&path, 5).unwrap(), b"12345");
    assert_eq!(files::read(&path, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    assert_eq!(files::read(&path, u64::MAX).unwrap(), b"12345");
    assert_eq!(files::read(&directory.join("none"), 5).unwrap_err().kind(), io::ErrorKind::NotFound);
    // A hole of 1 TiB takes no room on disk, and none in memory.
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(files::read(&path, 1 << 20).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    // Files of the kernel report length 0 and are not empty: the limit holds for the bytes read.
    assert!(files::read(Path::new("/proc/cpuinfo"), 1 << 24).unwrap().len() > 10);
    assert_eq!(files::read(Path::new("/proc/cpuinfo"), 10).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    fs::write(&path, b"ab\xff").unwrap();
    assert!(files::read_text(&path, 5).unwrap_err().to_string().contains("byte 2"));
    for (written, read) in [("\u{feff}a\u{feff}", "a\u{feff}"), ("\u{feff}", ""), ("a", "a")] {
        fs::write(&path, written).unwrap();
        assert_eq!(files::read_text(&path, 9).unwrap(), read, "{written:?}");
    }
}

#[test]
fn a_file_is_replaced_whole_whatever_lay_there() {
    let directory = Scratch::new("files-replace");
    let path = directory.join("deep/file");
    files::replace(&path, b"one").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one");
    // A pipe at the path, and one at the path of the temporary file: no call waits for a reader.
    fs::remove_file(&path).unwrap();
    fifo(&path);
    fifo(&directory.join(format!("deep/file.{}.tmp", std::process::id())));
    files::replace(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    let failed = files::replace_private_by(&path, |file| file.write_all(b"thr").and(Err(io::Error::other("no"))));
    assert_eq!(failed.unwrap_err().to_string(), "no");
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left over");
}

#[test]
fn what_is_private_is_new_and_its_owners() {
    use std::os::unix::fs::MetadataExt;
    let directory = Scratch::new("files-private");
    let path = directory.join("file");
    let file = files::create_private(&path).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(files::create_private(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    symlink(directory.join("elsewhere"), directory.join("link")).unwrap();
    assert_eq!(files::create_private(&directory.join("link")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    let mut file = files::append(&directory.join("partial")).unwrap();
    file.write_all(b"a").unwrap();
    files::append(&directory.join("partial")).unwrap().write_all(b"b").unwrap();
    assert_eq!(files::read(&directory.join("partial"), 2).unwrap(), b"ab");
}
