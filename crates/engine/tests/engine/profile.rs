//! Refused profiles and the faults in their errors.

use riffle_engine::Profile;

#[test]
fn what_is_no_profile_is_refused_with_its_fault() {
    for (text, part) in [
        ("[prefil]\npolicy = \"full\"", "prefil"),
        ("[prefill]", "policy"),
        ("[prefill]\npolicy = 3", "line 2"),
        ("[prefill]\npolicy = \"full", "line 2"),
        ("[prefill]\npolicy = \"psychic\"", "psychic"),
        ("[prefill]\npolicy = \"quest\"", "does not support prefill"),
        (
            "[decode]\npolicy = \"full\"\n[[decode.rules]]\nlayers = \"3-1\"\npolicy = \"full\"",
            "3-1",
        ),
        (
            "[cost]\nattend_ns = -1.0\ndecode_ns = 1.0\nscore_ns = 1.0\nweigh_ns = 1.0\nrank_ns = 1.0",
            "nanoseconds",
        ),
    ] {
        let message = text.parse::<Profile>().unwrap_err().to_string();
        assert!(!message.contains('\n'), "{message}");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_profile_without_a_section_is_refused_and_one_section_is_enough() {
    for text in ["", "\n# nothing but a remark\n"] {
        let message = text.parse::<Profile>().unwrap_err().to_string();
        assert!(message.contains("it is empty"), "{message}");
    }
    let text = "[decode]\npolicy = \"full\"";
    assert_eq!(text.parse::<Profile>().unwrap(), Profile::default());
}
