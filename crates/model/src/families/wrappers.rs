//! Classes that read pictures or sound and contain the text model of a known family.
//!
//! Only the text model is computed. Its settings are in `text_config`, and its tensor names have a prefix.

use serde_json::Value;

use super::defaults::{is_tied_by_default, with_class_defaults, with_wrapped_defaults};
use super::phi3;
use crate::ModelError;
use crate::fields::Fields;

/// A class around a text model.
pub(super) struct Wrapper {
    pub(super) class: &'static str,
    /// The `model_type` of the text model, if config.json has none.
    pub(super) text_type: &'static str,
    /// A factor of the text model that the class ignores.
    ignored_factor: Option<&'static str>,
}

const fn wrapper(class: &'static str, text_type: &'static str) -> Wrapper {
    Wrapper {
        class,
        text_type,
        ignored_factor: None,
    }
}

/// A class that ignores one factor of its text model.
const fn wrapper_without(factor: &'static str, class: &'static str, text_type: &'static str) -> Wrapper {
    Wrapper {
        ignored_factor: Some(factor),
        ..wrapper(class, text_type)
    }
}

/// Settings of a wrapping class that also apply to its text model.
const SHARED: [&str; 8] = [
    "architectures",
    "tie_word_embeddings",
    "quantization_config",
    "compression_config",
    "text_config",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
];

const WRAPPERS: &[Wrapper] = &[
    wrapper("Apertus1p5ForConditionalGeneration", "apertus1p5_text"),
    wrapper("AriaForConditionalGeneration", "aria_text"),
    wrapper("AudioFlamingo3ForConditionalGeneration", "qwen2"),
    wrapper_without("logit_scale", "AyaVisionForConditionalGeneration", "cohere2"),
    wrapper_without("logit_scale", "Cohere2VisionForConditionalGeneration", "cohere2"),
    wrapper("CohereCompassForConditionalGeneration", "cohere_compass_text"),
    wrapper("DeepseekVLForConditionalGeneration", "llama"),
    wrapper("DeepseekVLHybridForConditionalGeneration", "llama"),
    wrapper("Emu3ForConditionalGeneration", "emu3_text_model"),
    wrapper("Ernie4_5_VLMoeForConditionalGeneration", "ernie4_5_vl_moe_text"),
    wrapper("Exaone4_5_ForConditionalGeneration", "exaone4"),
    wrapper("FastVlmForConditionalGeneration", "qwen2"),
    wrapper("FunAsrNanoForConditionalGeneration", "qwen3"),
    wrapper("Gemma3ForConditionalGeneration", "gemma3_text"),
    wrapper("Gemma3nForConditionalGeneration", "gemma3n_text"),
    wrapper("Gemma4ForConditionalGeneration", "gemma4_text"),
    wrapper("Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text"),
    wrapper("Glm46VForConditionalGeneration", "glm4v_text"),
    wrapper("Glm4vForConditionalGeneration", "glm4v_text"),
    wrapper("Glm4vMoeForConditionalGeneration", "glm4v_moe_text"),
    wrapper("GlmAsrForConditionalGeneration", "llama"),
    wrapper("GlmOcrForConditionalGeneration", "glm_ocr_text"),
    wrapper("GotOcr2ForConditionalGeneration", "qwen2"),
    wrapper("Granite4VisionForConditionalGeneration", "granite4_vision_text"),
    wrapper("GraniteDoclingForConditionalGeneration", "granite_docling_text"),
    wrapper_without("logits_scaling", "GraniteSpeechForConditionalGeneration", "granite"),
    wrapper_without("logits_scaling", "GraniteSpeechPlusForConditionalGeneration", "granite"),
    wrapper("HunYuanVLForConditionalGeneration", "hunyuan_vl_text"),
    wrapper("HyperCLOVAXVisionV2ForConditionalGeneration", "hyperclovax"),
    wrapper("Idefics2ForConditionalGeneration", "mistral"),
    wrapper("Idefics3ForConditionalGeneration", "llama"),
    wrapper("InternVLForConditionalGeneration", "qwen2"),
    wrapper("JanusForConditionalGeneration", "llama"),
    wrapper("Kimi_K25ForConditionalGeneration", "deepseek_v3"),
    wrapper("KimiK25ForConditionalGeneration", "deepseek_v3"),
    wrapper("Lfm2VlForConditionalGeneration", "lfm2"),
    wrapper("Lfm3VlForConditionalGeneration", "lfm3"),
    wrapper("LightOnOcrForConditionalGeneration", "qwen3"),
    wrapper("Llama4ForConditionalGeneration", "llama4_text"),
    wrapper("LlavaForConditionalGeneration", "llama"),
    wrapper("LlavaNextForConditionalGeneration", "llama"),
    wrapper("LlavaNextVideoForConditionalGeneration", "llama"),
    wrapper("LlavaOnevisionForConditionalGeneration", "qwen2"),
    wrapper("MiniCPMOcrForConditionalGeneration", "qwen3_5_text"),
    wrapper("MiniCPMV4_6ForConditionalGeneration", "qwen3_5_text"),
    wrapper("MiniCPMV4_7ForConditionalGeneration", "qwen3_5_text"),
    wrapper("Mistral3ForConditionalGeneration", "mistral"),
    wrapper("MossTranscribeDiarizeForConditionalGeneration", "qwen3"),
    wrapper("MuseGlimmerForConditionalGeneration", "muse_glimmer_text"),
    wrapper("MusicFlamingoForConditionalGeneration", "qwen2"),
    wrapper("NemotronH_Omni_Reasoning_V3", "nemotron_h"),
    wrapper("OmniASRForConditionalGeneration", "llama"),
    wrapper("Ovis2ForConditionalGeneration", "qwen2"),
    wrapper("PaddleOCRVLForConditionalGeneration", "paddleocr_vl_text"),
    wrapper("PaliGemmaForConditionalGeneration", "gemma"),
    wrapper("PerceptionLMForConditionalGeneration", "llama"),
    wrapper("QianfanOCRForConditionalGeneration", "qwen3"),
    wrapper("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text"),
    wrapper("Qwen2_5OmniThinkerForConditionalGeneration", "qwen2_5_omni_text"),
    wrapper("Qwen2AudioForConditionalGeneration", "qwen2"),
    wrapper("Qwen2VLForConditionalGeneration", "qwen2_vl_text"),
    wrapper("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    wrapper("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
    wrapper("Qwen3ASRForConditionalGeneration", "qwen3"),
    wrapper("Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_text"),
    wrapper("Qwen3VLForConditionalGeneration", "qwen3_vl_text"),
    wrapper("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"),
    wrapper("Qwen4ExpForConditionalGeneration", "qwen4_exp_text"),
    wrapper("SmolVLMForConditionalGeneration", "llama"),
    wrapper("VibeVoiceAsrForConditionalGeneration", "qwen2"),
    wrapper("VibeVoiceForConditionalGeneration", "qwen2"),
    wrapper("VideoLlama3ForConditionalGeneration", "qwen2"),
    wrapper("VideoLlavaForConditionalGeneration", "llama"),
    wrapper("VipLlavaForConditionalGeneration", "llama"),
    wrapper("VoxtralForConditionalGeneration", "llama"),
];

/// Types of text models, and the family that computes them. All sections of a position are equal in text.
const TYPES: &[(&str, &str)] = &[
    ("qwen2_vl", "qwen2"),
    ("qwen2_vl_text", "qwen2"),
    ("qwen2_5_vl", "qwen2"),
    ("qwen2_5_vl_text", "qwen2"),
    ("qwen2_5_omni_text", "qwen2"),
    ("qwen3_vl_text", "qwen3"),
    ("qwen3_vl_moe_text", "qwen3_moe"),
    ("gemma4_unified_text", "gemma4_text"),
    ("internlm3", "llama"),
    ("iquestcoder", "llama"),
    ("granite4_vision_text", "granite"),
    ("granite_docling_text", "granite"),
    ("hunyuan_vl_text", "hunyuan_v1_dense"),
    ("ernie4_5_vl_moe_text", "ernie4_5_moe"),
    ("glm4v_moe_text", "glm4_moe"),
    ("llama4", "llama4_text"),
    ("qwen3_omni_moe_text", "qwen3_moe"),
];

/// Classes that tie embeddings even if only the text model's settings ask for it.
const TIED_BY_TEXT: &[&str] = &[
    "Glm46VForConditionalGeneration",
    "Glm4vForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "HunYuanVLForConditionalGeneration",
    "PaddleOCRVLForConditionalGeneration",
    "PerceptionLMForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "VibeVoiceForConditionalGeneration",
];

/// Prefixes of a wrapped text model's tensor names, and the families' prefixes.
pub(crate) const NAMES: &[(&str, &str)] = &[
    ("model.language_model.model.", "model."),
    ("model.language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("language_model.model.encoder.", "model."),
    // The form in which transformers 5 saves Kimi-K2.5, whose tower has blocks.
    ("language_model.model.blocks.", "model.layers."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.backbone.", "backbone."),
    ("model.text_model.", "model."),
    ("text_model.lm_head.", "lm_head."),
    ("text_model.model.", "model."),
    ("text_model.", "model."),
    ("thinker.model.", "model."),
    ("thinker.lm_head.", "lm_head."),
];

/// Classes that read pictures or sound in addition to text, and the `model_type` of the text model if config.json has
/// none. Only text is supported.
pub fn wrapper_classes() -> impl Iterator<Item = (&'static str, &'static str)> {
    WRAPPERS.iter().map(|wrapper| (wrapper.class, wrapper.text_type))
}

/// The wrapper among the classes in config.json.
pub(super) fn find(architectures: &[String]) -> Option<&'static Wrapper> {
    WRAPPERS
        .iter()
        .find(|wrapper| architectures.iter().any(|name| name == wrapper.class))
}

/// The `model_type` of the family for a text model.
pub(super) fn family_type(text_type: &str) -> &str {
    let known = TYPES.iter().find(|(known, _)| *known == text_type);
    known.map_or(text_type, |(_, family)| family)
}

/// True if config.json names a class around a text model.
pub(crate) fn is_wrapper(fields: &Fields) -> bool {
    fields.texts("architectures").is_ok_and(|names| find(&names).is_some())
}

/// True if a tensor of a wrapper belongs to its text model.
pub(crate) fn is_of_text_model(name: &str) -> bool {
    [
        "model.layers.",
        "model.embed_tokens.",
        "model.norm.",
        "model.norm_f.",
        "model.hyper_connection_mixer.",
        "lm_head.",
        "model.embed_tokens_per_layer.",
        "model.per_layer_model_projection.",
        "model.per_layer_projection_norm.",
    ]
    .iter()
    .any(|beginning| name.starts_with(beginning))
}

/// The settings of the text model, with its class's defaults for missing settings.
pub(crate) fn text_fields(fields: Fields) -> Result<Fields, ModelError> {
    let Some(wrapper) = find(&fields.texts("architectures")?) else {
        let fields = with_class_defaults(fields.of_text_model()?)?;
        let is_phi3 = fields.text("model_type")? == Some("phi3");
        return if is_phi3 {
            phi3::settle_original_length(fields)
        } else {
            Ok(fields)
        };
    };
    let is_nested = fields.object("text_config")?.is_some();
    if !is_nested {
        return fields.of_text_model();
    }
    // The whole class's settings decide; only some classes read the text model's.
    let tied = fields.flag("tie_word_embeddings", is_tied_by_default(wrapper.class))?;
    let text = fields.object("text_config")?;
    let text_tied = text.map_or(Ok(false), |text| text.flag("tie_word_embeddings", false))?;
    let is_tied = tied || text_tied && TIED_BY_TEXT.contains(&wrapper.class);
    let fields = fields.with_only(&SHARED).of_text_model()?;
    let mut fields = fields.with("tie_word_embeddings", is_tied);
    if wrapper.class == "Gemma3ForConditionalGeneration" {
        // Only the class of the text model caps its logits.
        fields = fields.with("final_logit_softcapping", Value::Null);
    }
    if let Some(factor) = wrapper.ignored_factor {
        fields = fields.with(factor, 1.0);
    }
    let text_type = match fields.object("text_config")? {
        Some(text) => text.text("model_type")?.unwrap_or(wrapper.text_type).to_owned(),
        None => wrapper.text_type.to_owned(),
    };
    let fields = with_wrapped_defaults(fields, wrapper.class, &text_type)?;
    Ok(fields.with("model_type", text_type))
}
