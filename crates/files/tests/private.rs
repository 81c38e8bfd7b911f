//! What is private to its owner, and files in the making.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use files::{append_private, create_private, force_private_directory, private_directory, replace_private, writer_of};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn what_is_no_directory_is_named() {
    let place = testing::Scratch::new("files-none");
    fs::write(place.join("file"), "x").unwrap();
    std::os::unix::fs::symlink("nothing", place.join("link")).unwrap();
    for (name, expected) in [
        ("file", "a regular file, not a directory"),
        ("link", "a link to nothing, which does not exist, not a directory"),
    ] {
        assert_eq!(private_directory(&place.join(name)).unwrap_err().to_string(), expected);
    }
}

#[test]
fn what_is_private_is_its_owners_alone() {
    let place = testing::Scratch::new("files");
    let inner = place.join("a/b");
    replace_private(&inner.join("kept"), b"x").unwrap();
    drop(append_private(&inner.join("grown")).unwrap());
    drop(create_private(&inner.join("new")).unwrap());
    for (path, expected) in
        [("a", 0o700), ("a/b", 0o700), ("a/b/kept", 0o600), ("a/b/grown", 0o600), ("a/b/new", 0o600)]
    {
        assert_eq!(mode(&place.join(path)), expected, "{path}");
    }
    fs::set_permissions(&inner, Permissions::from_mode(0o755)).unwrap();
    private_directory(&inner).unwrap();
    assert_eq!(mode(&inner), 0o755, "one that is there stays as it is");
    force_private_directory(&inner).unwrap();
    assert_eq!(mode(&inner), 0o700);
}

#[test]
fn a_file_in_the_making_is_known_by_its_name() {
    for (name, writer) in [
        ("note.json.12.tmp", Some(12)),
        ("a.b.c.4294967295.tmp", Some(u32::MAX)),
        (".12.tmp", None),
        ("note.json.tmp", None),
        ("note.12", None),
        ("note.12.tmp.json", None),
        ("note.+2.tmp", None),
        ("note..tmp", None),
        ("note.99999999999.tmp", None),
    ] {
        assert_eq!(writer_of(Path::new(name)), writer, "{name}");
    }
    let place = testing::Scratch::new("files-making");
    let written = files::replace_private_by(&place.join("note.json"), |_| {
        let making = fs::read_dir(&place)?.next().expect("it is there while it is written")?;
        assert_eq!(writer_of(&making.path()), Some(std::process::id()));
        Ok(())
    });
    written.unwrap();
}
