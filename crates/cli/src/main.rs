//! The program `riffle`.

fn main() -> std::process::ExitCode {
    riffle_cli::main()
}
