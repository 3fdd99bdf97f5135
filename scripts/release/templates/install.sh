#!/bin/sh
# Installs Riffle @VERSION@ for one user, on Linux or macOS.
#
# The script fetches the archive for this system, compares its SHA-256 sum, unpacks it to ~/.local/lib/riffle, and links the program
# and its manual pages from ~/.local. Needs curl or wget. Leaves with status 1 after one line where something is wrong.
#
# Usage: sh install.sh [FOLDER]          default: ~/.local
# RIFFLE_URL names another place of the archives.
set -eu

version=@VERSION@
url=${RIFFLE_URL:-@URL@}
# Sums of the archives, one a line: TARGET SUM.
sums='@SUMS@'
# The oldest C library that the programs for Linux start with.
glibc_minor=34

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

# Prints the target of this system.
target() {
  system=$(uname -s) machine=$(uname -m)
  # Apple's processors name themselves x86_64 to a shell for Intel's.
  if [ "$system" = Darwin ] && [ "$(sysctl -n sysctl.proc_translated 2>/dev/null || true)" = 1 ]; then machine=arm64; fi
  case $machine in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
  esac
  case $system in
    Linux) echo "$machine-unknown-linux-gnu" ;;
    Darwin) echo "$machine-apple-darwin" ;;
    *) echo "$machine-$system" ;;
  esac
}

# Ends the script where the C library is not glibc, or is too old.
check_c_library() {
  glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || fail "this Linux has no glibc, which the program needs: build it from the sources (cargo install)"
  minor=${glibc#glibc 2.}
  [ "${minor%%.*}" -ge "$glibc_minor" ] || fail "this Linux has $glibc, and the program needs 2.$glibc_minor or later: build it from the sources (cargo install)"
}

# fetch FILE PLACE
fetch() {
  case $1 in
    /* | file:///*) cp "${1#file://}" "$2" 2>/dev/null ;;
    *) if command -v curl >/dev/null; then
      curl --fail --silent --location --output "$2" "$1"
    elif command -v wget >/dev/null; then
      wget --quiet --output-document "$2" "$1"
    else
      fail "neither curl nor wget is here"
    fi ;;
  esac
}

# Prints the SHA-256 sum of a file.
sum_of() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

place=${1:-${HOME:?is not set}/.local}
target=$(target)
wanted=$(printf '%s\n' "$sums" | sed -n "s/^$target //p")
[ -n "$wanted" ] || fail "there is no archive for $target; there is one for $(printf '%s\n' "$sums" | cut -d ' ' -f 1 | paste -s -d ' ' -): build it from the sources (cargo install)"
case $target in *-linux-gnu) check_c_library ;; esac
command -v sha256sum >/dev/null || command -v shasum >/dev/null || fail "neither sha256sum nor shasum is here to check the archive"

name=riffle-$version-$target
mkdir -p "$place/lib" "$place/bin" "$place/share/man/man1" 2>/dev/null || fail "cannot make folders in $place"
# Links name whole paths.
place=$(cd "$place" && pwd)
folder=$place/lib/riffle
# Beside the folder, so that a finished one is put in place by a rename.
work=$(mktemp -d "$place/lib/.riffle-XXXXXX") || fail "cannot write to $place/lib"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fetch "$url/$name.tar.gz" "$work/archive" || fail "cannot fetch $url/$name.tar.gz"
found=$(sum_of "$work/archive")
[ "$found" = "$wanted" ] || fail "$name.tar.gz has the SHA-256 sum $found in place of $wanted: nothing was installed"
tar -xzf "$work/archive" -C "$work" || fail "cannot unpack $name.tar.gz"
"$work/$name/riffle" --version >/dev/null 2>&1 || fail "the program of $name does not start on this system: nothing was installed"

if [ -e "$folder" ]; then mv "$folder" "$work/old" || fail "cannot replace $folder"; fi
mv "$work/$name" "$folder" || fail "cannot write $folder"
ln -sf "$folder/riffle" "$place/bin/riffle" || fail "cannot link $place/bin/riffle"
for page in "$folder"/man/man1/*; do ln -sf "$page" "$place/share/man/man1/"; done

echo "Riffle $version is installed: $place/bin/riffle"
case :$PATH: in
  *":$place/bin:"*) ;;
  *) echo "$place/bin is not on your PATH yet: add  export PATH=\"$place/bin:\$PATH\"  to the profile of your shell" ;;
esac
echo "Completions for bash, zsh and fish are in $folder/completions. To remove all: rm -r $folder $place/bin/riffle $place/share/man/man1/riffle*"
