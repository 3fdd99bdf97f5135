//! The worker: Dynamo's calls, from start to end.

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use dynamo_backend_common::{
    DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine, LLMEngineOutput, LlmRegistration,
    MetricsBindings, MetricsCtx, PreprocessedRequest,
};
use futures::stream::BoxStream;
use riffle_cli::{Failure, ServingArguments};
use riffle_engine::Engine;
use riffle_server::{EventSink, ServerOptions, Worker};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::answer::chunks;
use crate::failure::{not_running, of_request};
use crate::holdings::Holdings;
use crate::load::Load;
use crate::request::asked;

/// A model for Dynamo. It is loaded when Dynamo starts the worker.
pub struct RiffleWorker {
    arguments: ServingArguments,
    /// Blocks that the cache holds, for Dynamo's router; `None` tells the router nothing.
    holdings: Option<Arc<Holdings>>,
    load: Arc<Load>,
    running: RwLock<Option<Arc<Running>>>,
}

/// A started worker.
struct Running {
    engine: Arc<Engine>,
    worker: Worker,
    options: ServerOptions,
}

impl RiffleWorker {
    /// A worker with these options. Nothing is loaded yet.
    pub fn new(arguments: ServingArguments, tells_holdings: bool) -> Self {
        Self {
            arguments,
            holdings: tells_holdings.then(Arc::default),
            load: Arc::default(),
            running: RwLock::default(),
        }
    }

    fn running(&self) -> Result<Arc<Running>, DynamoError> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running
            .clone()
            .ok_or_else(|| not_running("the worker has not started, or has ended: ask another"))
    }
}

impl Running {
    /// Loads the model and starts the thread that answers.
    fn start(arguments: &ServingArguments, holdings: Option<Arc<Holdings>>) -> Result<Self, Failure> {
        let options = arguments.server_options()?;
        let engine = arguments.load(0)?;
        let sink = holdings.map(|holdings| -> EventSink { Box::new(move |events| holdings.take(events)) });
        Ok(Self {
            worker: Worker::start(&engine, &options, sink)?,
            engine,
            options,
        })
    }

    /// Limit on the blocks of all requests together.
    fn total_blocks(&self) -> u64 {
        let options = self.engine.options();
        let tokens = options.cache.pool_tokens.unwrap_or(self.engine.plan().context_tokens);
        (tokens / options.cache.page_tokens) as u64
    }

    /// The model's facts, for its registration with Dynamo.
    fn config(&self) -> EngineConfig {
        let (plan, options) = (self.engine.plan(), self.engine.options());
        let name = &self.options.model_name;
        EngineConfig {
            model: name.clone(),
            served_model_name: Some(name.clone()),
            llm: Some(LlmRegistration {
                context_length: u32::try_from(plan.context_tokens).ok(),
                kv_cache_block_size: u32::try_from(options.cache.page_tokens).ok(),
                total_kv_blocks: Some(self.total_blocks()),
                max_num_seqs: Some(self.options.parallel as u64),
                max_num_batched_tokens: Some(options.machine.batch_tokens as u64),
                ..LlmRegistration::default()
            }),
            ..EngineConfig::default()
        }
    }
}

#[async_trait]
impl LLMEngine for RiffleWorker {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        if let Ok(model) = self.arguments.model_path() {
            tracing::info!(model = %model.display(), "loading the model");
        }
        let (arguments, holdings) = (self.arguments.clone(), self.holdings.clone());
        let started = spawn_blocking(move || Running::start(&arguments, holdings)).await;
        let running = match started {
            Ok(Ok(running)) => running,
            Ok(Err(failure)) => return Err(not_running(failure.message())),
            Err(_) => return Err(not_running("the model could not be loaded: please report it")),
        };
        let config = running.config();
        self.load
            .begin(running.engine.options().cache.page_tokens, running.total_blocks());
        tracing::info!(context = running.engine.plan().context_tokens, "the model is loaded");
        *self.running.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(running));
        Ok(config)
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        context: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let running = self.running()?;
        let request = asked(request, &running.engine, &running.worker, &running.options).await?;
        let prompt_tokens = request.tokens.len();
        let place = self.load.count_request(prompt_tokens);
        let answer = running.worker.ask(request).await;
        let answer = answer.map_err(|failure| of_request(&failure))?;
        let load = Arc::clone(&self.load);
        Ok(chunks(answer, context.inner_arc(), prompt_tokens, load, place))
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        let running = self.running.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            // Stopping writes the held beginnings to the prefix cache, which may be slow.
            let grace = running.options.grace;
            drop(spawn_blocking(move || running.worker.stop(grace)).await);
        }
        self.load.end();
        if let Some(holdings) = &self.holdings {
            holdings.end();
        }
        Ok(())
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let source = |holdings: &Arc<Holdings>| {
            let holdings = Arc::clone(holdings);
            KvEventSource::Push {
                on_ready: Box::new(move |publisher| {
                    holdings.set_publisher(publisher);
                    Ok(())
                }),
                dp_rank: 0,
            }
        };
        Ok(self.holdings.iter().map(source).collect())
    }

    async fn setup_metrics(&self, context: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let running = Arc::downgrade(&self.running()?);
        context.metrics.add_expfmt_callback(Arc::new(move || {
            let text = running.upgrade().map(|running| running.worker.metrics());
            Ok(text.map_or_else(String::new, without_end))
        }));
        let load = Arc::clone(&self.load);
        Ok(MetricsBindings {
            dp_ranks: vec![0],
            on_publisher_ready: Some(Box::new(move |publisher| {
                load.set_publisher(publisher);
                Ok(())
            })),
        })
    }

    async fn health_check_payload(&self) -> Result<Option<Value>, DynamoError> {
        let running = self.running()?;
        let first = running.engine.generation_defaults().bos.unwrap_or(0);
        Ok(Some(json!({
            "token_ids": [first],
            "sampling_options": {"temperature": 0.0},
            "stop_conditions": {"max_tokens": 1, "ignore_eos": true},
        })))
    }
}

/// Metrics without their last line, because Dynamo adds its own metrics.
fn without_end(text: String) -> String {
    match text.strip_suffix("# EOF\n") {
        Some(text) => text.to_owned(),
        None => text,
    }
}
