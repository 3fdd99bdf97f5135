//! Tests of refusals, and of the cost of changing policies.

use riffle_chat::{ChatError, ChatOptions, Conversation};
use riffle_engine::StopReason;
use riffle_policy::PolicyRules;

use crate::testing::{TEMPLATE, ask, chat_options, conversation, engine_with_template, go_on, options, plain_engine};

const FIRST: &str = "And it came to pass in those days, that the king went up to the city.";

fn rules(text: &str) -> Option<PolicyRules> {
    Some(text.parse().expect("a policy"))
}

#[test]
fn a_message_that_does_not_fit_is_refused_with_what_to_do_and_nothing_changes() {
    let options = options().with_context_tokens(Some(64));
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options);
    let mut conversation = conversation(&engine, 8);
    let (_, first) = ask(&mut conversation, FIRST);
    let held = conversation.report().tokens;
    let error = conversation.ask(&FIRST.repeat(3), &mut go_on).expect_err("too long");
    let message = error.to_string();
    assert!(matches!(error, ChatError::ContextFull { .. }), "{message}");
    for part in ["64", "context_tokens", "/undo", "/clear", "was not read"] {
        assert!(message.contains(part), "no {part} in {message}");
    }
    assert_eq!((conversation.turns().len(), conversation.report().tokens), (1, held));

    // An answer that fills the context reports it.
    let mut generate = conversation.generate_options().clone();
    generate.max_tokens = 1000;
    generate.ignores_end = true;
    conversation.set_generate_options(generate).expect("options");
    let report = conversation.retry(&mut go_on).expect("an answer");
    assert_eq!(report.stop, StopReason::ContextFull);
    assert!(report.generated_tokens > first.generated_tokens);
    assert!(matches!(
        conversation.ask("Go on.", &mut go_on),
        Err(ChatError::ContextFull { .. })
    ));
    conversation.undo().expect("a turn");
    ask(&mut conversation, "Go on.");
}

#[test]
fn instructions_for_a_model_without_a_template_and_empty_messages_are_refused() {
    let options = ChatOptions {
        system: Some("Be brief.".to_owned()),
        ..ChatOptions::default()
    };
    let refused = Conversation::new(plain_engine(), options).err().expect("refused");
    assert!(refused.to_string().contains("chat template"), "{refused}");
    let mut conversation = conversation(&plain_engine(), 4);
    assert!(conversation.set_system(Some("Be brief.".to_owned())).is_err());
    assert!(matches!(
        conversation.ask(" \n", &mut go_on),
        Err(ChatError::EmptyMessage)
    ));
    assert!(matches!(conversation.retry(&mut go_on), Err(ChatError::Nothing(_))));
    ask(&mut conversation, FIRST);
}

#[test]
fn a_template_that_takes_no_instructions_says_so() {
    let template = format!(
        "{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no system role') }}}}{{% endif %}}{TEMPLATE}"
    );
    let (engine, _folder) = engine_with_template("model", &template, options());
    let mut conversation = conversation(&engine, 4);
    let error = conversation
        .set_system(Some("Be brief.".to_owned()))
        .expect_err("refused");
    assert!(error.to_string().contains("no system role"), "{error}");
    assert_eq!(conversation.system(), None);
    ask(&mut conversation, FIRST);
}

#[test]
fn options_that_lose_tokens_of_a_prompt_are_refused() {
    let options = options().with_token_selection(Some("0.1".parse().expect("a share")));
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options);
    let refused = Conversation::new(engine, chat_options(4, 0.0)).err().expect("refused");
    assert!(refused.to_string().contains("`token_selection`"), "{refused}");
}

#[test]
fn another_decode_policy_reads_nothing_again_and_another_prefill_policy_does() {
    let (engine, _folder) = engine_with_template("model", TEMPLATE, options());
    let mut conversation = conversation(&engine, 8);
    ask(&mut conversation, FIRST);
    let held = conversation.report().tokens;
    let change = conversation
        .set_policies(
            None,
            rules("quest:from=0,dense_layers=0,block=16,topk=1,threshold=0,recent=1"),
        )
        .expect("quest");
    assert_eq!(change.again_tokens, 0);
    let (_, report) = ask(&mut conversation, "And then?");
    assert_eq!(report.reused_tokens, held);
    let status = conversation.report();
    assert!(
        status.decode_policy.starts_with("quest") && status.pairs.read < status.pairs.causal,
        "{status:?}"
    );

    let held = status.tokens;
    let change = conversation
        .set_policies(rules("streaming:sinks=16,window=32,from=0"), None)
        .expect("streaming");
    assert_eq!(change.again_tokens, held);
    let (_, report) = ask(&mut conversation, "And then?");
    assert_eq!(report.reused_tokens, 0);
    assert!(conversation.report().prefill_policy.starts_with("streaming"));
    // A policy that must see the text reads it again; a policy without decode support is refused.
    assert!(
        conversation
            .set_policies(None, rules("snapkv"))
            .expect("snapkv")
            .again_tokens
            > 0
    );
    ask(&mut conversation, "And then?");
    assert!(conversation.set_policies(None, rules("xattention")).is_err());
    assert!(conversation.report().decode_policy.starts_with("snapkv"));
    ask(&mut conversation, "And then?");
}
