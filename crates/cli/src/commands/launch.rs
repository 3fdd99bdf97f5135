//! `riffle launch`: starts a coding agent with the settings for a server.

mod agents;
mod offered;

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use riffle_server::Stopper;
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use self::agents::{Place, Settings};
use self::offered::Offered;
use super::serve::{self, Bound};
use crate::args::Command as Chosen;
use crate::command_line;
use crate::console::{self, print};
use crate::failure::Failure;
use crate::launch_args::LaunchArguments;

/// Variable with the server's key.
const KEY: &str = "RIFFLE_API_KEY";

/// Endings of programs on Windows that can be started.
const SCRIPT_ENDINGS: [&str; 3] = [".exe", ".cmd", ".bat"];

/// Arguments of a server for a single agent: agents ask for titles and run sub-agents beside the main conversation.
const SERVER: [&str; 7] = ["riffle", "serve", "--quiet", "--port", "0", "--host", "localhost"];

pub(crate) fn launch(arguments: &LaunchArguments) -> Result<(), Failure> {
    let own = arguments.serve.as_ref().map(OwnServer::start).transpose()?;
    let url = own.as_ref().map_or(arguments.url.as_str(), |own| own.url.as_str());
    let url = url.trim_end_matches('/');
    let key = std::env::var(KEY).ok().filter(|key| !key.is_empty());
    let offered = offered::models(url, key.as_deref())?;
    let model = chosen(&offered, arguments.model.as_deref(), url)?;
    let settings = Settings::new(
        arguments.agent,
        &Place {
            url,
            key: key.as_deref(),
            model: &model.name,
            context_tokens: model.context_tokens,
        },
    );
    if arguments.print {
        return print(&settings.as_shell(&arguments.arguments));
    }
    console::note(format!("{} on {} at {url}", settings.program, model.name));
    let ended = start(&settings, &arguments.arguments);
    drop(own);
    ended
}

/// The model of this name, or the first.
fn chosen<'o>(offered: &'o [Offered], name: Option<&str>, url: &str) -> Result<&'o Offered, Failure> {
    let found = match name {
        None => offered.first(),
        Some(name) => offered.iter().find(|model| model.name == name),
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = offered.iter().map(|model| model.name.as_str()).collect();
        Failure::new(match name {
            Some(name) => format!("--model {name}: the server at {url} has {}", names.join(", ")),
            None => format!("the server at {url} has no model"),
        })
    })
}

/// Runs an agent until it ends.
fn start(settings: &Settings, more: &[OsString]) -> Result<(), Failure> {
    // An interrupt is for the agent, which may continue after it.
    let interrupted = flag::register(SIGINT, Arc::new(AtomicBool::new(false)));
    interrupted.map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    let status = Command::new(program_file(settings.program, &|name| env::var_os(name)))
        .envs(settings.variables.iter().map(|(name, value)| (*name, value)))
        .args(&settings.arguments)
        .args(more)
        .status();
    match status {
        Ok(status) => outcome(settings, status),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::new(format!(
            "{} is not installed here: {}, or see its settings with --print",
            settings.program, settings.install
        ))),
        Err(error) => Err(Failure::new(format!("{} cannot be started: {error}", settings.program))),
    }
}

/// The file of a program on the path. npm installs scripts that end with `.cmd` on Windows, where `PATHEXT` is set;
/// there a program is looked for by its name and `.exe` alone.
fn program_file(program: &str, variable: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    let (path, is_windows) = (variable("PATH").unwrap_or_default(), variable("PATHEXT").is_some());
    let endings = SCRIPT_ENDINGS.iter().filter(|_| is_windows);
    let names: Vec<String> = endings.map(|ending| format!("{program}{ending}")).collect();
    env::split_paths(&path)
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find(|file| file.is_file())
        .unwrap_or_else(|| PathBuf::from(program))
}

fn outcome(settings: &Settings, status: ExitStatus) -> Result<(), Failure> {
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(format!("{} ended with {status}", settings.program)))
    }
}

/// A server in this process; dropping it ends the server.
struct OwnServer {
    url: String,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl OwnServer {
    fn start(model: &OsString) -> Result<Self, Failure> {
        let words = SERVER.iter().map(OsString::from);
        let words = words.chain([OsString::from("--model"), model.clone()]);
        let parsed = command_line::parse(words).map_err(|error| Failure::usage(&error))?;
        let Some(Chosen::Serve(mut arguments)) = parsed.command else {
            return Err(Failure::new("--serve takes a model"));
        };
        // The agent is on this machine, and would have to trust the certificate.
        (arguments.tls_cert, arguments.tls_key) = (None, None);
        let Bound { server, .. } = serve::bound(&arguments)?;
        let url = format!("http://{}{}", server.address(), arguments.base_path);
        let stopper = server.stopper();
        let run = move || {
            if let Err(error) = server.run() {
                console::note(Failure::from(error));
            }
        };
        let thread = std::thread::Builder::new().name("riffle-server".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Failure::new(format!("the server cannot be started: {error}")))?;
        Ok(Self {
            url,
            stopper,
            thread: Some(thread),
        })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_npm_is_found_where_programs_have_endings() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let script = folders[1].path().join("agent.cmd");
        std::fs::write(&script, "").expect("a file");
        let path = env::join_paths(folders.iter().map(|folder| folder.path())).expect("a path");
        let with = |endings: Option<&str>| {
            program_file("agent", &|name| match name {
                "PATH" => Some(path.clone()),
                _ => endings.map(OsString::from),
            })
        };
        assert_eq!(with(Some(".EXE;.CMD")), script);
        assert_eq!(with(None), PathBuf::from("agent"));
    }
}
