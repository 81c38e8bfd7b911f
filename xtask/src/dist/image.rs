//! The container image: Debian's C library, the tree and a user without rights, put together by buildah, without a
//! daemon.

use std::ffi::OsStr;
use std::path::Path;

use super::{VERSION, read, shell, skipped, write};
use crate::setup::is_here;

/// A root with nothing but the C library and libgcc: what the binary needs. Certificate authorities are in the binary.
const LIBRARIES: &str =
    "mmdebstrap --quiet --variant=extract --include=libc6,libgcc-s1 --architectures=amd64 bookworm \"$1\"";

/// The user has a number and no more; models and what is measured lie in `/data`.
const BUILD: &str = "
    buildah() { command buildah --root \"$1\" --runroot \"$1/run\" --storage-driver vfs \"${@:2}\"; }
    container=$(buildah \"$1\" from scratch)
    buildah \"$1\" add --quiet $container \"$2\" / > /dev/null
    buildah \"$1\" copy --quiet $container \"$3\" /usr > /dev/null
    mkdir -p \"$1/empty\"
    buildah \"$1\" copy --quiet --chown 65532:65532 --chmod 750 $container \"$1/empty\" /data > /dev/null
    buildah \"$1\" config --user 65532:65532 --volume /data --port 8000 --workingdir /data \
        --env HF_HOME=/data/huggingface --env XDG_CACHE_HOME=/data/cache --env XDG_STATE_HOME=/data/state \
        --entrypoint '[\"/usr/bin/twostroke\"]' --cmd '[\"serve\", \"--host\", \"0.0.0.0\"]' \
        --label org.opencontainers.image.version=$5 --label org.opencontainers.image.licenses='Apache-2.0 OR MIT' \
        $container
    buildah \"$1\" commit --quiet --timestamp $SOURCE_DATE_EPOCH --rm $container twostroke:$5 > /dev/null
    buildah \"$1\" push --quiet twostroke:$5 oci:\"$4\":twostroke:$5
    rm -rf \"$1\"";

/// `twostroke-VERSION-image.tar`, an archive of OCI's and of Docker's layout. False where a tool for it is missing.
pub(super) fn make(tree: &Path, work: &Path, to: &Path, moment: u64) -> Result<bool, String> {
    for program in ["buildah", "mmdebstrap", "bash"] {
        if !is_here(program) {
            skipped("image", &format!("{program} is not here"));
            return Ok(false);
        }
    }
    let (libraries, layout) = (work.join("libraries.tar"), work.join(format!("twostroke-{VERSION}-image")));
    shell(LIBRARIES, &[libraries.as_os_str()], moment)?;
    let store = work.join("containers");
    let build = "script=$1; shift; exec bash -euc \"$script\" bash \"$@\"";
    let paths = [store.as_os_str(), libraries.as_os_str(), tree.as_os_str(), layout.as_os_str()];
    shell(build, &[&[OsStr::new(BUILD)], &paths[..], &[OsStr::new(VERSION)]].concat(), moment)?;
    name(&layout)?;
    let file = to.join(format!("twostroke-{VERSION}-image.tar"));
    let pack = "tar --directory \"$1\" --sort=name --mtime=@$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner \
                --mode=u+rwX,go+rX,go-w --format=ustar --create --file \"$2\" index.json manifest.json oci-layout blobs";
    shell(pack, &[layout.as_os_str(), file.as_os_str()], moment)?;
    Ok(true)
}

/// Names the image as `docker save` does: beside OCI's index there is `manifest.json`, without which the older of
/// Docker's two stores loads nothing, and the name is in the annotation that podman and the newer store look for first.
fn name(layout: &Path) -> Result<(), String> {
    let (index, manifest) = (layout.join("index.json"), layout.join("manifest.json"));
    let text = read(&index)?;
    let (own, whole) = (format!("twostroke:{VERSION}"), format!("docker.io/library/twostroke:{VERSION}"));
    let key = "\"org.opencontainers.image.ref.name\":";
    let named = format!("\"io.containerd.image.name\":\"{whole}\",{key}\"{VERSION}\"");
    write(&index, text.replace(&format!("{key}\"{own}\""), &named))?;
    let described = digests(&text).next().ok_or("buildah's index names no manifest")?;
    let described = read(&layout.join("blobs/sha256").join(described))?;
    // First the configuration, then the layers from below.
    let blobs: Vec<String> = digests(&described).map(|digest| format!("\"blobs/sha256/{digest}\"")).collect();
    let (configuration, layers) = blobs.split_first().ok_or("buildah's manifest names no configuration")?;
    let layers = layers.join(",");
    write(&manifest, format!("[{{\"Config\":{configuration},\"RepoTags\":[\"{own}\"],\"Layers\":[{layers}]}}]\n"))
}

/// The hexadecimal digests in a text, in their order.
fn digests(text: &str) -> impl Iterator<Item = &str> {
    text.split("sha256:").skip(1).map(|rest| rest.split('"').next().unwrap_or(rest))
}
