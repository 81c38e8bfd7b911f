//! What a tarball has below one directory, a package below `/usr` and an image below `/usr` too.
//!
//! ```text
//! bin/twostroke
//! share/man/man1/twostroke*.1        share/doc/twostroke/{README.md, CHANGELOG.md, LICENSE-*, THIRD-PARTY}
//! share/{bash-completion/completions/twostroke, zsh/site-functions/_twostroke,
//!        fish/vendor_completions.d/twostroke.fish}
//! ```

use std::fs;
use std::path::Path;

use super::binary::Machine;
use super::{output, write};
use crate::shell::{command, root, show};

/// What goes into a tree.
pub(super) struct Parts<'a> {
    /// The binary.
    pub(super) binary: &'a Path,
    /// One that runs here, which writes the manual and the completions.
    pub(super) writer: &'a Path,
    /// The machine that the binary is for.
    pub(super) machine: Machine,
    /// Licences of what is linked into it.
    pub(super) third_party: &'a str,
}

const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/twostroke"),
    ("zsh", "share/zsh/site-functions/_twostroke"),
    ("fish", "share/fish/vendor_completions.d/twostroke.fish"),
];

pub(super) fn plant(tree: &Path, parts: &Parts<'_>) -> Result<(), String> {
    let failure = |error: std::io::Error| format!("{}: {error}", tree.display());
    let (manual, documents) = (tree.join("share/man/man1"), tree.join("share/doc/twostroke"));
    for directory in [&tree.join("bin"), &manual, &documents] {
        fs::create_dir_all(directory).map_err(failure)?;
    }
    let mut strip = command(parts.machine.program("strip"), &["-D", "-o"]);
    show(strip.arg(tree.join("bin/twostroke")).arg(parts.binary))?;
    show(command(parts.writer, &["man-pages"]).arg(manual))?;
    for (shell, place) in COMPLETIONS {
        let file = tree.join(place);
        fs::create_dir_all(file.parent().expect("it lies in a directory")).map_err(failure)?;
        write(&file, output(&mut command(parts.writer, &["completions", shell]))?)?;
    }
    for name in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(root().join(name), documents.join(name)).map_err(failure)?;
    }
    write(&documents.join("THIRD-PARTY"), parts.third_party)
}
