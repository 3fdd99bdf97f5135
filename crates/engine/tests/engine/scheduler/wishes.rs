//! Options of a request: probabilities, forms, lengths, audits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use riffle_engine::{
    AnswerForm, Engine, EngineError, Event, GenerateOptions, Request, Scheduler, SequenceOptions, Session, StopReason,
    TokenConstraint, TokenProbabilities,
};

use super::{alone, engine, finish, options, request, scheduler, tokens};
use crate::testing::go_on;

/// Every event of one request: probabilities of its prompt, tokens with their probabilities, and the stop reason.
#[derive(Debug, Default)]
struct Answered {
    prompt: Vec<TokenProbabilities>,
    tokens: Vec<(u32, Option<TokenProbabilities>)>,
    stop: Option<StopReason>,
    failure: Option<EngineError>,
    kept_mass: Option<f64>,
}

fn told(scheduler: &mut Scheduler, request: Request) -> Answered {
    let mut told = Answered::default();
    scheduler.submit(request).unwrap();
    scheduler
        .run(&mut |event| match event {
            Event::PromptProbabilities(_, probabilities) => told.prompt.extend(probabilities),
            Event::Token(_, written) => told.tokens.push((written.token, written.probabilities)),
            Event::Finished(_, report, sequence) => {
                told.stop = Some(report.generation.stop);
                told.kept_mass = sequence.audit().map(|audit| audit.mean_mass);
            }
            Event::Failed(_, error) => told.failure = Some(error),
            Event::Reading(..) | Event::Compressed(..) | Event::PrefixCacheLost(_) | Event::SharedStore(_) => {}
        })
        .unwrap();
    told
}

/// The logarithms of the probabilities of each token after the first, from the logits of single steps.
fn step_by_step(engine: &Arc<Engine>, prompt: &[u32]) -> Vec<f64> {
    let mut session = Session::new(engine).unwrap();
    let mut found = Vec::new();
    for pair in prompt.windows(2) {
        session.prefill(&pair[..1], &mut go_on).unwrap();
        let logits = session.logits();
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        found.push(f64::from(logits[pair[1] as usize] - largest) - sum.ln());
    }
    found
}

#[test]
fn probabilities_of_a_prompt_are_those_of_reading_it_token_by_token() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    // A prompt longer than one chunk of a request for probabilities.
    let prompt = tokens(&engine, "In the beginning was the word. ", 300);
    let asked = Request {
        prompt_probabilities: Some(2),
        ..request(prompt.clone(), 3)
    };
    let expected = step_by_step(&engine, &prompt);
    // The second time the whole prompt is cached.
    for _ in 0..2 {
        let told = told(&mut scheduler, asked.clone());
        assert_eq!(told.prompt.len(), prompt.len() - 1);
        for ((found, expected), token) in told.prompt.iter().zip(&expected).zip(&prompt[1..]) {
            assert_eq!(found.token, *token);
            assert!(
                (f64::from(found.log_probability) - expected).abs() < 1e-3,
                "{found:?} {expected}"
            );
            assert_eq!(found.likeliest.len(), 2);
            assert!(found.likeliest[0].1 >= found.likeliest[1].1);
        }
        let written: Vec<u32> = told.tokens.iter().map(|(token, _)| *token).collect();
        assert_eq!(written, alone(&asked).tokens);
    }
}

#[test]
fn the_likeliest_token_of_a_greedy_answer_is_the_one_written() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let mut asked = request(tokens(&engine, "And it came to pass ", 50), 8);
    asked.generate.probabilities = Some(3);
    let told = told(&mut scheduler, asked);
    assert_eq!(told.tokens.len(), 8);
    for (token, probabilities) in told.tokens {
        let probabilities = probabilities.unwrap();
        assert_eq!((probabilities.token, probabilities.likeliest[0].0), (token, token));
        assert_eq!(probabilities.likeliest[0].1, probabilities.log_probability);
    }
}

/// A form that allows exactly these tokens.
#[derive(Debug)]
struct Exactly(Vec<u32>);

struct Rest {
    tokens: Vec<u32>,
    bits: Vec<u32>,
}

impl AnswerForm for Exactly {
    fn begin(&self) -> Result<Box<dyn TokenConstraint>, String> {
        Ok(Box::new(Rest {
            tokens: self.0.clone(),
            bits: Vec::new(),
        }))
    }
}

impl TokenConstraint for Rest {
    fn allowed(&mut self) -> Result<&[u32], String> {
        self.bits = vec![0; 4096];
        if let Some(token) = self.tokens.first() {
            self.bits[*token as usize / 32] |= 1 << (token % 32);
        }
        Ok(&self.bits)
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        assert_eq!(self.tokens.remove(0), token);
        Ok(self.tokens.is_empty())
    }
}

fn formed(engine: &Engine, form: Vec<u32>, min_tokens: usize) -> Request {
    Request {
        generate: GenerateOptions {
            max_tokens: 20,
            form: Some(Arc::new(Exactly(form))),
            min_tokens,
            ..GenerateOptions::default()
        },
        ..request(tokens(engine, "Then said he ", 30), 0)
    }
}

#[test]
fn an_answer_keeps_to_its_form_and_ends_with_it() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let form = vec![7, 300, 7, 41];
    let told = told(&mut scheduler, formed(&engine, form.clone(), 0));
    let written: Vec<u32> = told.tokens.iter().map(|(token, _)| *token).collect();
    assert_eq!((written, told.stop), (form, Some(StopReason::EndOfText)));
}

#[test]
fn a_form_that_allows_nothing_fails_its_request_alone() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let end = engine.generation_defaults().eos[0];
    for asked in [formed(&engine, Vec::new(), 0), formed(&engine, vec![end], 5)] {
        let other = scheduler
            .submit(request(tokens(&engine, "Then said he ", 30), 4))
            .unwrap();
        let mut found = Vec::new();
        let id = scheduler.submit(asked).unwrap();
        scheduler
            .run(&mut |event| match event {
                Event::Failed(failed, error) => found.push((failed, error.to_string())),
                Event::Finished(finished, ..) => assert_eq!(finished, other),
                _ => {}
            })
            .unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, id);
        assert!(
            found[0].1.ends_with("no token of the model can come next"),
            "{}",
            found[0].1
        );
    }
}

#[test]
fn an_answer_goes_on_to_its_least_length_and_past_the_end_where_that_is_asked() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let end = engine.generation_defaults().eos[0];
    let certain = |generate: GenerateOptions| {
        let mut generate = generate;
        generate.sampling.logit_bias = vec![(end, 1e6)];
        Request {
            generate,
            ..request(tokens(&engine, "Then said he ", 30), 0)
        }
    };
    let least = told(
        &mut scheduler,
        certain(GenerateOptions {
            max_tokens: 9,
            min_tokens: 5,
            ..GenerateOptions::default()
        }),
    );
    assert_eq!((least.tokens.len(), least.stop), (6, Some(StopReason::EndOfText)));
    let past = told(
        &mut scheduler,
        certain(GenerateOptions {
            max_tokens: 9,
            ignores_end: true,
            ..GenerateOptions::default()
        }),
    );
    assert_eq!((past.tokens.len(), past.stop), (9, Some(StopReason::MaxTokens)));
}

#[test]
fn one_request_can_be_audited_beside_others() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let asked = |audit, prefill: &str| Request {
        sequence: Some(SequenceOptions {
            prefill: prefill.parse().unwrap(),
            audit,
            ..engine.options().sequence.clone()
        }),
        ..request(tokens(&engine, "In the beginning was the word. ", 300), 2)
    };
    assert_eq!(told(&mut scheduler, asked(false, "full")).kept_mass, None);
    let mass = told(&mut scheduler, asked(true, "streaming:sinks=4,window=32"))
        .kept_mass
        .unwrap();
    assert!(mass > 0.05 && mass < 0.999, "{mass}");
}

#[test]
fn what_nobody_has_asked_for_since_a_time_is_forgotten() {
    let engine = engine(options());
    let mut scheduler = scheduler(&engine, 4);
    let prompt = tokens(&engine, "In the beginning was the word. ", 300);
    scheduler.submit(request(prompt.clone(), 2)).unwrap();
    finish(&mut scheduler);
    let before = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
    assert_eq!((scheduler.forget_idle_since(before), scheduler.idle()), (0, 1));
    assert_eq!((scheduler.forget_idle_since(Instant::now()), scheduler.idle()), (1, 0));
    assert_eq!(scheduler.pool().pages(), 0);
    let id = scheduler.submit(request(prompt, 2)).unwrap();
    assert_eq!(finish(&mut scheduler)[&id].1, 0);
}
