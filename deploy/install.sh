#!/bin/sh
# Installs twostroke from a directory of release files, or removes it. Needs curl or wget, tar, gzip and sha256sum.
#
#   curl -fsSL "$TWOSTROKE_BASE_URL/install.sh" | sh                     to ~/.local, as root to /usr/local
#   curl -fsSL "$TWOSTROKE_BASE_URL/install.sh" | sh -s -- --uninstall   what it has installed, and nothing else
#
# The variable names where SHA256SUMS and the tarballs lie; it has to be exported. A file whose sum is not the one
# listed, half of one, a full disk, a machine that there is no tarball for: one line says so and nothing is installed.
set -eu

say() {
    printf 'twostroke: %s\n' "$1" >&2
}

fail() {
    say "$1; nothing was installed"
    exit 1
}

usage() {
    echo "usage: install.sh [--prefix DIR] [--uninstall]" >&2
    exit 2
}

# The name that release files have for this machine.
machine() {
    case "$(uname -s) $(uname -m)" in
        "Linux x86_64" | "Linux amd64") echo x86_64-linux ;;
        "Linux aarch64" | "Linux arm64") echo aarch64-linux ;;
        *) fail "there is no binary for $(uname -s) on $(uname -m), only for Linux on x86_64 and aarch64" ;;
    esac
}

fetch() {
    if command -v curl > /dev/null; then
        curl -fsSL --retry 2 -o "$2" "$1" || return 1
    elif command -v wget > /dev/null; then
        wget -q -O "$2" "$1" || return 1
    else
        fail "curl or wget is needed to download"
    fi
}

sum() {
    if command -v sha256sum > /dev/null; then
        sha256sum < "$1" | cut -d ' ' -f 1
    elif command -v shasum > /dev/null; then
        shasum -a 256 < "$1" | cut -d ' ' -f 1
    else
        fail "sha256sum or shasum is needed to verify the download"
    fi
}

# Downloads and verifies into $stage, unpacks there and has the program say its version.
prepare() {
    kind=$(machine)
    fetch "$TWOSTROKE_BASE_URL/SHA256SUMS" "$stage/SHA256SUMS" ||
        fail "$TWOSTROKE_BASE_URL/SHA256SUMS cannot be downloaded"
    # `SUM  twostroke-VERSION-MACHINE.tar.gz`
    line=$(grep "  twostroke-[0-9A-Za-z.+~-]*-$kind\.tar\.gz\$" "$stage/SHA256SUMS" | tail -n 1)
    [ -n "$line" ] || fail "there is no tarball for $kind in $TWOSTROKE_BASE_URL/SHA256SUMS"
    listed=${line%% *} tarball=${line##* }
    fetch "$TWOSTROKE_BASE_URL/$tarball" "$stage/$tarball" ||
        fail "$TWOSTROKE_BASE_URL/$tarball cannot be downloaded whole into $prefix"
    found=$(sum "$stage/$tarball")
    [ "$found" = "$listed" ] ||
        fail "$tarball is damaged: its SHA-256 is $found and SHA256SUMS says $listed"
    (cd "$stage" && gzip -dc "$tarball" | tar -xf -) 2> "$stage/problem" ||
        fail "$tarball cannot be unpacked into $prefix: $(tail -n 1 "$stage/problem")"
    tree="$stage/${tarball%.tar.gz}"
    version=$("$tree/bin/twostroke" --version 2> "$stage/problem") ||
        fail "the program does not start here (it needs glibc 2.34 or later and libgcc): $(tail -n 1 "$stage/problem")"
}

# Moves every file to its place, which takes no room on the disk, and lists it for --uninstall. What an earlier version
# had and this one has not goes.
put() {
    new="$tree/share/twostroke/installed"
    { mkdir -p "$tree/share/twostroke" && (cd "$tree" && find . -type f | sed 's|^\./||' | sort) > "$stage/files" &&
        echo share/twostroke/installed >> "$stage/files" && cp "$stage/files" "$new"; } 2> /dev/null ||
        fail "there is no room in $prefix"
    while read -r file; do
        directory=$(dirname "$prefix/$file")
        { mkdir -p "$directory" && [ -w "$directory" ] && [ ! -d "$prefix/$file" ]; } 2> "$stage/problem" ||
            fail "$prefix/$file cannot be written"
    done < "$stage/files"
    if [ -f "$list" ]; then
        grep -vxF -f "$new" "$list" | while read -r file; do remove "$file"; done
    fi
    while read -r file; do mv -f "$tree/$file" "$prefix/$file"; done < "$stage/files"
}

# A file, and its directories as far as they are empty then.
remove() {
    rm -f "$prefix/$1"
    directory=$(dirname "$1")
    while [ "$directory" != . ] && rmdir "$prefix/$directory" 2> /dev/null; do
        directory=$(dirname "$directory")
    done
}

uninstall() {
    [ -f "$list" ] || {
        say "nothing was installed below $prefix by this script"
        exit 1
    }
    while read -r file; do remove "$file"; done < "$list"
    say "removed from $prefix; models and what was measured stay in ${XDG_CACHE_HOME:-~/.cache}"
}

main() {
    prefix="" action=install
    while [ $# -gt 0 ]; do
        case "$1" in
            --prefix)
                [ -n "${2:-}" ] || usage
                prefix=$2
                shift
                ;;
            --uninstall) action=uninstall ;;
            *) usage ;;
        esac
        shift
    done
    if [ -z "$prefix" ]; then
        if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?is not set}/.local; fi
    fi
    list="$prefix/share/twostroke/installed"
    if [ "$action" = uninstall ]; then
        uninstall
        return
    fi
    [ -n "${TWOSTROKE_BASE_URL:-}" ] || fail "TWOSTROKE_BASE_URL is not set, or not exported: it names where the release files lie"
    mkdir -p "$prefix" 2> /dev/null || fail "$prefix cannot be written to"
    # On the disk that it goes to, so that moving is all that is left once everything is known to be right.
    stage=$(mktemp -d "$prefix/.twostroke.XXXXXX" 2> /dev/null) || fail "$prefix cannot be written to"
    trap 'rm -rf "$stage"; rmdir "$prefix" 2> /dev/null || true' EXIT
    trap 'exit 1' HUP INT TERM
    prepare
    put
    say "$version is in $prefix/bin"
    case ":$PATH:" in
        *":$prefix/bin:"*) ;;
        *) say "$prefix/bin is not on your PATH: add it, as in export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
}

# The last line: half a script does nothing.
main "$@"
