//! The command line.

use std::path::{Path, PathBuf};

use clap::Parser;
use dynamo_backend_common::{CommonArgs, DisaggregationMode, WorkerConfig};
use riffle_cli::{Failure, ServingArguments};

use crate::RiffleWorker;

/// Files of a model's folder that Dynamo's frontend reads.
const FRONTEND_FILES: [&str; 2] = ["tokenizer.json", "config.json"];

/// Serve a model as a worker of NVIDIA Dynamo
#[derive(Debug, Parser)]
#[command(
    name = "riffle-dynamo",
    version,
    about = "Serve a model as a worker of NVIDIA Dynamo",
    long_about = "Serve a model as a worker of NVIDIA Dynamo\n\nOptions of the model and of its cache are those of riffle serve. A block of Dynamo's router is a page of the cache: --page-tokens.",
    after_help = "Example, without etcd and NATS:\n  export DYN_DISCOVERY_BACKEND=file DYN_FILE_KV=FOLDER DYN_EVENT_PLANE=zmq\n  riffle-dynamo --model DIR --page-tokens 64\n  python -m dynamo.frontend --router-mode kv"
)]
pub struct Arguments {
    #[command(flatten)]
    serving: ServingArguments,
    /// Folder with the tokenizer.json and config.json that Dynamo's frontend reads [default: the folder of --model]
    #[arg(long, value_name = "DIR", help_heading = "Dynamo")]
    frontend_files: Option<PathBuf>,
    /// Do not report cached blocks to Dynamo's router, which then knows only the load
    #[arg(long, help_heading = "Dynamo")]
    no_kv_events: bool,
    #[command(flatten, next_help_heading = "Dynamo")]
    dynamo: CommonArgs,
}

impl Arguments {
    /// The worker for these arguments, and its runtime options in Dynamo. Nothing is loaded yet.
    ///
    /// # Errors
    /// Invalid options, roles that the worker lacks, and models that Dynamo's frontend cannot read.
    pub fn worker(self) -> Result<(RiffleWorker, WorkerConfig), Failure> {
        // Checks before Dynamo's runtime waits for etcd.
        self.serving.check()?;
        refuse_roles(&self.dynamo)?;
        let files = frontend_files(self.frontend_files.as_deref(), self.serving.model_path()?)?;
        let config = WorkerConfig {
            namespace: self.dynamo.namespace,
            component: self.dynamo.component,
            endpoint: self.dynamo.endpoint,
            model_name: files.display().to_string(),
            served_model_name: Some(self.serving.model_name()?),
            endpoint_types: self.dynamo.endpoint_types,
            custom_jinja_template: self.dynamo.custom_jinja_template,
            tool_call_parser: self.dynamo.dyn_tool_call_parser,
            reasoning_parser: self.dynamo.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: self.dynamo.exclude_tools_when_tool_choice_none,
            runtime: self.dynamo.runtime,
            ..WorkerConfig::default()
        };
        Ok((RiffleWorker::new(self.serving, !self.no_kv_events), config))
    }
}

/// Refuses roles that Riffle's worker does not have.
fn refuse_roles(dynamo: &CommonArgs) -> Result<(), Failure> {
    if dynamo.disaggregation_mode != DisaggregationMode::Aggregated {
        return Err(Failure::new(
            "--disaggregation-mode takes agg alone: a worker of Riffle reads prompts and answers them; several share what they have read through --prefix-cache valkey://HOST or s3://BUCKET",
        ));
    }
    if dynamo.route_to_encoder {
        return Err(Failure::new(
            "--route-to-encoder: Riffle takes tokens, not what an encoder makes of pictures: leave it out",
        ));
    }
    if dynamo.enable_rl {
        return Err(Failure::new(
            "--enable-rl: Riffle does not exchange weights while it runs: leave it out",
        ));
    }
    Ok(())
}

/// The folder that Dynamo's frontend reads.
fn frontend_files(given: Option<&Path>, model: &Path) -> Result<PathBuf, Failure> {
    let folder = given.unwrap_or(model);
    let hint = "name a folder that has them in --frontend-files";
    if !folder.is_dir() {
        let what = match folder.exists() {
            true => "a file",
            false => "not there",
        };
        return Err(Failure::new(format!(
            "{} is {what}, and Dynamo's frontend reads tokenizer.json and config.json of a folder: {hint}",
            folder.display()
        )));
    }
    match FRONTEND_FILES.iter().find(|name| !folder.join(name).is_file()) {
        Some(name) => Err(Failure::new(format!(
            "{} has no {name}, which Dynamo's frontend reads: {hint}",
            folder.display()
        ))),
        None => Ok(folder.to_owned()),
    }
}
