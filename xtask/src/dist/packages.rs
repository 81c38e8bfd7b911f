//! Tarball, Debian package, source and formula, and the sums of all.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::binary::{Build, Machine};
use super::{VERSION, filled, fresh, output, shell, skipped, write};
use crate::setup::is_here;
use crate::shell::{command, root};

/// A tree as `NAME.tar.gz`, where `NAME` is that of its directory: gzip is on every system, xz is not.
pub(super) fn tarball(tree: &Path, to: &Path, moment: u64) -> Result<(), String> {
    let name = tree.file_name().expect("a tree has a name");
    let directory = tree.parent().expect("it lies in a directory");
    let file = to.join(name).with_file_name(format!("{}.tar.gz", name.display()));
    let pack = "tar --directory \"$1\" --sort=name --mtime=@$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner \
                --mode=u+rwX,go+rX,go-w --format=ustar --create \"$2\" | gzip -n > \"$3\"";
    shell(pack, &[directory.as_os_str(), name, file.as_os_str()], moment)
}

/// What a Debian package is of.
pub(super) struct Package<'a> {
    /// The machine it is for.
    pub(super) machine: Machine,
    /// How its binary was built.
    pub(super) build: Build,
    /// Where it is put together.
    pub(super) work: &'a Path,
}

/// The tree below `/usr`, with the service, its user and its configuration.
pub(super) fn deb(tree: &Path, of: &Package<'_>, to: &Path, moment: u64) -> Result<(), String> {
    let Package { machine, build, work } = *of;
    let architecture = machine.debian();
    if !is_here("dpkg-deb") {
        skipped(&format!(".deb for {architecture}"), "dpkg-deb is not here");
        return Ok(());
    }
    let package = work.join(format!("deb-{architecture}"));
    fresh(&package.join("DEBIAN"))?;
    let deploy = root().join("deploy");
    // Debian has its own places for the first text of a licence and for the changes, and compresses pages.
    let lay = "cp -R \"$1\" \"$2/usr\"
        install -D -m 644 \"$3/systemd/twostroke.service\" \"$2/lib/systemd/system/twostroke.service\"
        install -D -m 644 \"$3/systemd/sysusers.conf\" \"$2/usr/lib/sysusers.d/twostroke.conf\"
        install -D -m 644 \"$3/debian/serve.yaml\" \"$2/etc/twostroke/serve.yaml\"
        install -m 755 \"$3/debian/postinst\" \"$3/debian/prerm\" \"$3/debian/postrm\" \"$2/DEBIAN\"
        install -D -m 644 \"$3/debian/lintian-overrides\" \"$2/usr/share/lintian/overrides/twostroke\"
        mkdir -p \"$2/usr/share/zsh/vendor-completions\"
        mv \"$2/usr/share/zsh/site-functions/_twostroke\" \"$2/usr/share/zsh/vendor-completions\"
        rmdir \"$2/usr/share/zsh/site-functions\"
        cd \"$2/usr/share/doc/twostroke\"
        rm LICENSE-APACHE LICENSE-MIT
        install -m 644 \"$3/debian/copyright\" copyright
        printf 'twostroke (%s) unstable; urgency=medium\\n\\n  * See CHANGELOG.md.\\n\\n -- %s  %s\\n' \"$4\" \
            'The twostroke developers <twostroke@packages.invalid>' \"$(date -R -d @$SOURCE_DATE_EPOCH)\" > changelog
        gzip -9n changelog CHANGELOG.md README.md THIRD-PARTY \"$2\"/usr/share/man/man1/*.1
        chmod -R u+rwX,go+rX,go-w \"$2\"
        cd \"$2\" && find usr lib -type f -exec md5sum {} + | LC_ALL=C sort -k 2 > DEBIAN/md5sums";
    let arguments = [tree.as_os_str(), package.as_os_str(), deploy.as_os_str(), OsStr::new(VERSION)];
    shell(lay, &arguments, moment)?;
    let size = output(command("du", &["-sk", "--apparent-size"]).arg(&package))?;
    let size = String::from_utf8_lossy(&size).split_whitespace().next().unwrap_or_default().to_owned();
    let values = [("VERSION", VERSION), ("ARCHITECTURE", architecture), ("KIB", &size)];
    write(&package.join("DEBIAN/control"), filled("debian/control.in", &values)?)?;
    write(&package.join("DEBIAN/conffiles"), "/etc/twostroke/serve.yaml\n")?;
    let file = to.join(format!("twostroke_{VERSION}_{architecture}.deb"));
    let pack = "find \"$1\" -exec touch -h -d @$SOURCE_DATE_EPOCH {} + &&
                dpkg-deb -Zxz -z\"$3\" --root-owner-group --build \"$1\" \"$2\" > /dev/null";
    // To compress well takes most of the time that a package takes.
    let level = if build == Build::Release { "6" } else { "1" };
    shell(pack, &[package.as_os_str(), file.as_os_str(), OsStr::new(level)], moment)
}

/// Where people download from: in the formula. A placeholder unless the variable of `deploy/install.sh` is set.
fn base_url() -> String {
    std::env::var("TWOSTROKE_BASE_URL").unwrap_or_else(|_| "https://downloads.example".to_owned())
}

/// The commit as a tarball, and the formula that builds it.
pub(super) fn source_and_formula(to: &Path) -> Result<(), String> {
    let file = to.join(format!("twostroke-{VERSION}.tar.gz"));
    let pack = "git archive --format=tar --prefix=\"twostroke-$1/\" HEAD | gzip -n > \"$2\"";
    shell(pack, &[OsStr::new(VERSION), file.as_os_str()], 0)?;
    let sum = output(&mut command("sha256sum", &[&file]))?;
    let sum = String::from_utf8_lossy(&sum).split(' ').next().unwrap_or_default().to_owned();
    let values = [("VERSION", VERSION), ("SHA256", &sum), ("BASE_URL", &base_url())];
    write(&to.join("twostroke.rb"), filled("homebrew/twostroke.rb.in", &values)?)
}

/// `SHA256SUMS` of all files, and the script that reads it beside them.
pub(super) fn sums(to: &Path) -> Result<(), String> {
    let script = to.join("install.sh");
    fs::copy(root().join("deploy/install.sh"), &script).map_err(|error| format!("{}: {error}", script.display()))?;
    // A shell has found the files before it makes this one.
    shell("cd \"$1\" && sha256sum -- * > SHA256SUMS", &[to.as_os_str()], 0)
}
