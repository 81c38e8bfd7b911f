//! Files that results are written to: none that another program wrote is lost.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use files::ResultFile;

fn is_ours(head: &[u8]) -> bool {
    head.starts_with(b"ours")
}

fn everything_below(place: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut all: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.into_iter().map(|path| (path.clone(), path.is_file().then(|| fs::read(path).unwrap()))).collect()
}

#[test]
fn nothing_that_is_not_ours_is_lost() {
    let place = testing::Scratch::new("own");
    let at = |name: &str| place.join(name);
    for (name, text) in [
        ("own", "ours, longer than what comes"),
        ("empty", ""),
        ("foreign", "theirs"),
        ("fixed", "ours"),
        ("fixed-foreign", "theirs"),
        ("later", "not ours, and ours"),
        ("binary", "\0\u{1}"),
        ("linked-own", "ours"),
        ("linked-foreign", "theirs"),
    ] {
        fs::write(at(name), text).unwrap();
    }
    for name in ["fixed", "fixed-foreign"] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o444)).unwrap();
    }
    fs::create_dir(at("directory")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    for (name, to) in [
        ("link-own", "linked-own"),
        ("link-foreign", "linked-foreign"),
        ("link-directory", "directory"),
        ("link-nowhere", "nowhere"),
        ("link-itself", "link-itself"),
    ] {
        symlink(to, at(name)).unwrap();
    }
    let table = [
        ("new", Ok("")),
        ("own", Ok("")),
        ("empty", Ok("")),
        ("link-own", Ok("")),
        ("foreign", Err("did not write")),
        ("later", Err("did not write")),
        ("binary", Err("did not write")),
        ("link-foreign", Err("did not write")),
        ("fixed", Err("read-only")),
        ("fixed-foreign", Err("read-only")),
        ("directory", Err("a directory")),
        ("link-directory", Err("a directory")),
        ("socket", Err("a socket")),
        ("link-nowhere", Err("a broken link")),
        ("link-itself", Err("")),
        ("no/directory", Err("no directory")),
        ("foreign/below", Err("")),
        ("..", Err("a directory")),
    ];
    for (name, wanted) in table {
        let before = everything_below(&place);
        let found = ResultFile::new(&at(name), is_ours);
        assert_eq!(everything_below(&place), before, "{name}: looking changes nothing");
        match (found, wanted) {
            (Ok(found), Ok(_)) => {
                found.put(b"ours, new").unwrap();
                assert_eq!(fs::read(at(name)).unwrap(), b"ours, new", "{name}");
            }
            (Err(error), Err(wanted)) => assert!(error.to_string().contains(wanted), "{name}: {error}"),
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
    // Also a file that appears between the check and the write.
    let late = ResultFile::new(&at("late"), is_ours).unwrap();
    fs::write(at("late"), "theirs").unwrap();
    assert!(late.put(b"ours").is_err());
    assert_eq!(fs::read(at("late")).unwrap(), b"theirs");
    ResultFile::new(Path::new("/dev/null"), is_ours).unwrap().put(b"ours").unwrap();
}
