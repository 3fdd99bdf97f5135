//! The list of the dense families.

use super::super::Family;
use super::convolution_families::{lfm2, lfm2_moe, lfm3};
use super::encoder_families::{self, BERT_NAMES, bert, roberta};
use super::expert_families::{
    dots1, ernie4_5_moe, gpt_oss, granite_moe, hunyuan_moe, minimax_m2, mixtral, olmoe, phimoe, qwen2_moe, qwen3_moe,
};
use super::latent_families::{
    axk1, deepseek_v2, deepseek_v3, deepseek_v32, glm_moe_dsa, glm4_moe_lite, minicpm3, mistral4, youtu,
};
use super::layer_norm_families::{
    cohere, cohere_compass, cohere2, falcon, gpt_neox, gptj, jais2, nemotron, olmo, persimmon, stablelm, starcoder2,
};
use super::layered_families::{afmoe, cohere2_moe, laguna, llama4, mimo_v2_flash};
use super::linear_families::{kimi_linear, lara_mini, minimax, olmo_hybrid};
use super::mixer_families::{bamba, falcon_h1, granite_hybrid, mamba2, nemotron_h};
use super::position_families::{biogpt, gpt_bigcode, gpt2, opt};
use super::rms_families::{
    apertus, apertus1p5, arcee, cwm, emu3, ernie4_5, exaone, exaone4, gemma, glm, glm_ocr, glm4, glm4v, granite,
    granite_swa, helium, hunyuan, hyperclovax, minicpm, ministral, ministral3, nanochat, olmo2, olmo3, paddle_ocr,
    seed_oss, smollm3, vaultgemma,
};
use super::routed_families::{
    aria_text, exaone_moe, flex_olmo, flint, glm4_moe_or_sarvam, granite_moe_swa, hy_v3, kolibri1, mellum, solar_open,
};
use super::{build, configure};

/// A family of this class and `model_type` with this plan.
macro_rules! family {
    ($class:literal, $model_type:literal, $plan:ident) => {
        Family::new(
            &[$class],
            $model_type,
            |fields, architecture| configure(&$plan(fields)?, architecture),
            |fields, config, weights| build(&$plan(fields)?, config, weights),
        )
    };
}

/// A family of encoders with these classes, this `model_type` and this plan. Its tokens of a second text may have a
/// type of their own.
macro_rules! encoder {
    ($classes:expr, $model_type:literal, $plan:ident, $has_pairs:literal) => {
        Family::new(
            $classes,
            $model_type,
            |fields, architecture| encoder_families::configure(&$plan(fields)?, architecture),
            |fields, config, weights| encoder_families::build(&$plan(fields)?, config, weights, $has_pairs),
        )
        .with_renames(BERT_NAMES)
    };
}

/// The scaling settings that Granite and related families support.
const MULTIPLIERS: &[&str] = &[
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
];

/// These settings, and the numbers of experts.
const EXPERTS_AND_MULTIPLIERS: &[&str] = &[
    "num_experts",
    "num_local_experts",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
];

/// Names of the setting for the number of experts.
const EXPERTS: &[&str] = &["num_experts", "num_local_experts", "n_routed_experts"];

/// Names of GPT-2's tensors; the first files lack the prefix `transformer.`.
const GPT2_NAMES: &[(&str, &str)] = &[
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.h.", "model.layers."),
    ("transformer.", "model."),
    ("wte.", "model.embed_tokens."),
    ("wpe.", "model.wpe."),
    ("h.", "model.layers."),
    ("ln_f.", "model.ln_f."),
];

/// Every dense family except the oldest, which have separate files.
pub(in crate::families) const FAMILIES: &[Family] = &[
    family!("SmolLM3ForCausalLM", "smollm3", smollm3).with_settings(&["no_rope_layer_interval"]),
    family!("GemmaForCausalLM", "gemma", gemma),
    family!("VaultGemmaForCausalLM", "vaultgemma", vaultgemma)
        .with_settings(&["attn_logit_softcapping", "final_logit_softcapping"]),
    family!("SeedOssForCausalLM", "seed_oss", seed_oss),
    family!("MiniCPMForCausalLM", "minicpm", minicpm),
    family!("GraniteForCausalLM", "granite", granite).with_settings(MULTIPLIERS),
    family!("GraniteSWAForCausalLM", "granite_swa", granite_swa).with_settings(MULTIPLIERS),
    family!("HyperCLOVAXForCausalLM", "hyperclovax", hyperclovax).with_settings(MULTIPLIERS),
    family!("ArceeForCausalLM", "arcee", arcee),
    family!("NemotronForCausalLM", "nemotron", nemotron).with_partial_rotation(),
    family!("Jais2ForCausalLM", "jais2", jais2),
    family!("OlmoForCausalLM", "olmo", olmo),
    family!("Olmo2ForCausalLM", "olmo2", olmo2),
    family!("Olmo3ForCausalLM", "olmo3", olmo3),
    family!("ExaoneForCausalLM", "exaone", exaone).with_renames(&[
        ("transformer.wte.", "model.embed_tokens."),
        ("transformer.h.", "model.layers."),
        ("transformer.", "model."),
    ]),
    family!("Exaone4ForCausalLM", "exaone4", exaone4),
    family!("GlmForCausalLM", "glm", glm).with_partial_rotation(),
    family!("Glm4ForCausalLM", "glm4", glm4).with_partial_rotation(),
    family!("Glm4vTextModel", "glm4v_text", glm4v).with_partial_rotation(),
    family!("GlmOcrTextModel", "glm_ocr_text", glm_ocr).with_partial_rotation(),
    family!("Ernie4_5ForCausalLM", "ernie4_5", ernie4_5),
    family!("PaddleOCRTextModel", "paddleocr_vl_text", paddle_ocr),
    family!("HeliumForCausalLM", "helium", helium),
    family!("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", hunyuan),
    family!("ApertusForCausalLM", "apertus", apertus),
    family!("Apertus1p5TextForCausalLM", "apertus1p5_text", apertus1p5),
    family!("Emu3ForCausalLM", "emu3_text_model", emu3),
    family!("CohereForCausalLM", "cohere", cohere).with_settings(&["logit_scale"]),
    family!("Cohere2ForCausalLM", "cohere2", cohere2).with_settings(&["logit_scale"]),
    family!("CohereCompassForCausalLM", "cohere_compass_text", cohere_compass).with_settings(&["logit_scale"]),
    family!("Starcoder2ForCausalLM", "starcoder2", starcoder2),
    family!("StableLmForCausalLM", "stablelm", stablelm).with_partial_rotation(),
    family!("CwmForCausalLM", "cwm", cwm),
    family!("MinistralForCausalLM", "ministral", ministral),
    family!("Ministral3ForCausalLM", "ministral3", ministral3),
    family!("NanoChatForCausalLM", "nanochat", nanochat).with_settings(&["final_logit_softcapping"]),
    family!("GPTNeoXForCausalLM", "gpt_neox", gpt_neox)
        .with_partial_rotation()
        .with_renames(&[
            ("gpt_neox.embed_in.", "model.embed_tokens."),
            ("gpt_neox.", "model."),
            ("embed_out.", "lm_head."),
        ]),
    family!("PersimmonForCausalLM", "persimmon", persimmon).with_partial_rotation(),
    family!("FalconForCausalLM", "falcon", falcon).with_renames(&[
        ("transformer.word_embeddings.", "model.embed_tokens."),
        ("transformer.h.", "model.layers."),
        ("transformer.", "model."),
    ]),
    family!("GPTJForCausalLM", "gptj", gptj).with_renames(&[
        ("transformer.wte.", "model.embed_tokens."),
        ("transformer.h.", "model.layers."),
        ("transformer.", "model."),
    ]),
    family!("GPT2LMHeadModel", "gpt2", gpt2).with_renames(GPT2_NAMES),
    family!("GPTBigCodeForCausalLM", "gpt_bigcode", gpt_bigcode).with_renames(GPT2_NAMES),
    family!("OPTForCausalLM", "opt", opt).with_renames(&[("model.decoder.", "model."), ("decoder.", "model.")]),
    family!("BioGptForCausalLM", "biogpt", biogpt)
        .with_renames(&[("biogpt.", "model."), ("output_projection.", "lm_head.")]),
    family!("MixtralForCausalLM", "mixtral", mixtral).with_settings(EXPERTS),
    family!("Qwen2MoeForCausalLM", "qwen2_moe", qwen2_moe).with_settings(EXPERTS),
    family!("Qwen3MoeForCausalLM", "qwen3_moe", qwen3_moe).with_settings(EXPERTS),
    family!("OlmoeForCausalLM", "olmoe", olmoe).with_settings(EXPERTS),
    family!("GraniteMoeForCausalLM", "granitemoe", granite_moe).with_settings(EXPERTS_AND_MULTIPLIERS),
    family!("GraniteMoeSharedForCausalLM", "granitemoeshared", granite_moe).with_settings(EXPERTS_AND_MULTIPLIERS),
    family!("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", ernie4_5_moe).with_settings(EXPERTS),
    family!("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", hunyuan_moe).with_settings(EXPERTS),
    Family {
        // The second is the name in released models.
        architectures: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
        ..family!("PhimoeForCausalLM", "phimoe", phimoe).with_settings(EXPERTS)
    },
    family!("Dots1ForCausalLM", "dots1", dots1).with_settings(EXPERTS),
    family!("Glm4MoeForCausalLM", "glm4_moe", glm4_moe_or_sarvam)
        .with_settings(EXPERTS)
        .with_partial_rotation()
        .with_renames(&[("model.word_embeddings.", "model.embed_tokens.")]),
    family!("MiniMaxM2ForCausalLM", "minimax_m2", minimax_m2)
        .with_settings(EXPERTS)
        .with_partial_rotation(),
    family!("GptOssForCausalLM", "gpt_oss", gpt_oss).with_settings(EXPERTS),
    family!("MiniCPM3ForCausalLM", "minicpm3", minicpm3),
    family!("DeepseekV2ForCausalLM", "deepseek_v2", deepseek_v2).with_settings(EXPERTS),
    family!("DeepseekV3ForCausalLM", "deepseek_v3", deepseek_v3).with_settings(EXPERTS),
    family!("DeepseekV32ForCausalLM", "deepseek_v32", deepseek_v32).with_settings(EXPERTS),
    family!("GlmMoeDsaForCausalLM", "glm_moe_dsa", glm_moe_dsa).with_settings(EXPERTS),
    family!("Glm4MoeLiteForCausalLM", "glm4_moe_lite", glm4_moe_lite).with_settings(EXPERTS),
    family!("AXK1ForCausalLM", "axk1", axk1).with_settings(EXPERTS),
    family!("Mistral4ForCausalLM", "mistral4", mistral4)
        .with_settings(EXPERTS)
        .with_partial_rotation(),
    family!("AfmoeForCausalLM", "afmoe", afmoe).with_settings(EXPERTS),
    family!("AriaTextForCausalLM", "aria_text", aria_text).with_settings(EXPERTS),
    family!("Cohere2MoeForCausalLM", "cohere2_moe", cohere2_moe).with_settings(&["num_experts", "logit_scale"]),
    family!("ExaoneMoeForCausalLM", "exaone_moe", exaone_moe).with_settings(EXPERTS),
    family!("FlexOlmoForCausalLM", "flex_olmo", flex_olmo).with_settings(EXPERTS),
    family!("FlintForCausalLM", "flint", flint).with_settings(EXPERTS),
    family!("GraniteMoeSWAForCausalLM", "granitemoe_swa", granite_moe_swa).with_settings(EXPERTS_AND_MULTIPLIERS),
    family!("HYV3ForCausalLM", "hy_v3", hy_v3).with_settings(EXPERTS),
    family!("Kolibri1ForCausalLM", "kolibri1", kolibri1).with_settings(EXPERTS),
    family!("LagunaForCausalLM", "laguna", laguna)
        .with_settings(EXPERTS)
        .with_partial_rotation(),
    family!("MellumForCausalLM", "mellum", mellum).with_settings(EXPERTS),
    family!("MiMoV2FlashForCausalLM", "mimo_v2_flash", mimo_v2_flash)
        .with_settings(EXPERTS)
        .with_partial_rotation()
        .with_renames(&[("model.mtp.", "mtp.")]),
    family!("SolarOpenForCausalLM", "solar_open", solar_open).with_settings(EXPERTS),
    family!("Llama4ForCausalLM", "llama4_text", llama4).with_settings(&[
        "num_experts",
        "num_local_experts",
        "attention_chunk_size",
        "no_rope_layer_interval",
    ]),
    family!("Lfm2MoeForCausalLM", "lfm2_moe", lfm2_moe).with_settings(EXPERTS),
    family!("KimiLinearForCausalLM", "kimi_linear", kimi_linear).with_settings(EXPERTS),
    family!("MiniMaxForCausalLM", "minimax", minimax).with_settings(EXPERTS),
    family!("YoutuForCausalLM", "youtu", youtu),
    family!("Lfm2ForCausalLM", "lfm2", lfm2),
    family!("Lfm3ForCausalLM", "lfm3", lfm3).with_partial_rotation(),
    family!("GraniteMoeHybridForCausalLM", "granitemoehybrid", granite_hybrid).with_settings(EXPERTS_AND_MULTIPLIERS),
    family!("BambaForCausalLM", "bamba", bamba).with_partial_rotation(),
    family!("FalconH1ForCausalLM", "falcon_h1", falcon_h1).with_settings(MULTIPLIERS),
    family!("OlmoHybridForCausalLM", "olmo_hybrid", olmo_hybrid),
    family!("LaraMiniForCausalLM", "lara_mini", lara_mini).with_settings(EXPERTS),
    family!("Mamba2ForCausalLM", "mamba2", mamba2).with_renames(&[
        ("backbone.embeddings.", "model.embed_tokens."),
        ("backbone.embedding.", "model.embed_tokens."),
        ("backbone.", "model."),
    ]),
    family!("NemotronHForCausalLM", "nemotron_h", nemotron_h)
        .with_settings(EXPERTS)
        .with_renames(&[
            ("backbone.embeddings.", "model.embed_tokens."),
            ("model.embeddings.", "model.embed_tokens."),
            ("backbone.", "model."),
        ]),
    encoder!(
        &["BertModel", "BertForMaskedLM", "BertForSequenceClassification"],
        "bert",
        bert,
        true
    ),
    encoder!(
        &["RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"],
        "roberta",
        roberta,
        false
    ),
    encoder!(
        &[
            "XLMRobertaModel",
            "XLMRobertaForMaskedLM",
            "XLMRobertaForSequenceClassification"
        ],
        "xlm-roberta",
        roberta,
        false
    ),
];
