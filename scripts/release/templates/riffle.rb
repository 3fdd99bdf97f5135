# Homebrew's formula of Riffle @VERSION@, made by scripts/release/packages.
class Riffle < Formula
  desc "Answers questions about long texts with language models on your own computer"
  homepage "@HOMEPAGE@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@URL@/riffle-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256_MACOS_ARM@"
    end
    on_intel do
      url "@URL@/riffle-@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@SHA256_MACOS_INTEL@"
    end
  end
  on_linux do
    on_arm do
      url "@URL@/riffle-@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256_LINUX_ARM@"
    end
    on_intel do
      url "@URL@/riffle-@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256_LINUX_INTEL@"
    end
  end

  # The program finds the shipped model and book beside itself, behind a link too.
  def install
    man1.install Dir["man/man1/*"]
    bash_completion.install "completions/riffle.bash" => "riffle"
    zsh_completion.install "completions/_riffle"
    fish_completion.install "completions/riffle.fish"
    libexec.install Dir["*"]
    bin.install_symlink libexec/"riffle"
  end

  test do
    assert_match "check     right", shell_output(bin/"riffle")
  end
end
