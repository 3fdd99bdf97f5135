//! The architectures of GGUF files: names, classes of config.json, and the differences of their files.

use super::header::Header;
use crate::ModelError;

/// The architectures in GGUF files that some family supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Qwen35,
    Phi2,
    Phi3,
    Gemma2,
    Gemma3,
    GemmaEmbedding,
    Mistral3,
    Qwen2Vl,
    Qwen3Vl,
    Gemma,
    SmolLm3,
    SeedOss,
    Granite,
    Arcee,
    Nemotron,
    Jais2,
    Olmo2,
    Exaone4,
    Glm4,
    Ernie45,
    HunyuanDense,
    CommandR,
    Cohere2,
    Starcoder2,
    Qwen2Moe,
    Qwen3Moe,
    Qwen3VlMoe,
    Qwen35Moe,
    Qwen3Next,
    GptOss,
    Olmoe,
    GraniteMoe,
    Ernie45Moe,
    HunyuanMoe,
    Dots1,
    Glm4Moe,
    MiniMaxM2,
    MiniCpm,
    MiniCpm3,
    Deepseek2,
    Deepseek32,
    GlmDsa,
    Lfm2,
    Lfm2Moe,
    GraniteHybrid,
    FalconH1,
    Mamba2,
    NemotronH,
    NemotronHMoe,
    Llama4,
    Afmoe,
    Cohere2Moe,
    ExaoneMoe,
    HyV3,
    Gemma4,
    MuseGlimmer,
    Olmo,
    StableLm,
    GraniteSwa,
    Apertus,
    ChatGlm,
    Exaone,
    Falcon,
    GptNeoX,
    Gpt2,
    StarCoder,
    PaddleOcr,
    HunyuanVl,
    Mellum,
    Mistral4,
    Laguna,
    Gemma3n,
    PhiMoe,
    KimiLinear,
    Qwen4Exp,
    Bert,
}

/// Name in the file, architecture, name in config.json.
const ARCHITECTURES: &[(&str, Architecture, &str)] = &[
    ("llama", Architecture::Llama, "LlamaForCausalLM"),
    ("qwen2", Architecture::Qwen2, "Qwen2ForCausalLM"),
    ("qwen3", Architecture::Qwen3, "Qwen3ForCausalLM"),
    ("qwen35", Architecture::Qwen35, "Qwen3_5ForCausalLM"),
    ("phi2", Architecture::Phi2, "PhiForCausalLM"),
    ("phi3", Architecture::Phi3, "Phi3ForCausalLM"),
    ("gemma2", Architecture::Gemma2, "Gemma2ForCausalLM"),
    ("gemma3", Architecture::Gemma3, "Gemma3ForCausalLM"),
    ("gemma-embedding", Architecture::GemmaEmbedding, "Gemma3ForCausalLM"),
    ("mistral3", Architecture::Mistral3, "LlamaForCausalLM"),
    ("qwen2vl", Architecture::Qwen2Vl, "Qwen2ForCausalLM"),
    ("qwen3vl", Architecture::Qwen3Vl, "Qwen3ForCausalLM"),
    ("gemma", Architecture::Gemma, "GemmaForCausalLM"),
    ("smollm3", Architecture::SmolLm3, "SmolLM3ForCausalLM"),
    ("seed_oss", Architecture::SeedOss, "SeedOssForCausalLM"),
    ("granite", Architecture::Granite, "GraniteForCausalLM"),
    ("arcee", Architecture::Arcee, "ArceeForCausalLM"),
    ("nemotron", Architecture::Nemotron, "NemotronForCausalLM"),
    ("jais2", Architecture::Jais2, "Jais2ForCausalLM"),
    ("olmo2", Architecture::Olmo2, "Olmo2ForCausalLM"),
    ("exaone4", Architecture::Exaone4, "Exaone4ForCausalLM"),
    ("glm4", Architecture::Glm4, "Glm4ForCausalLM"),
    ("ernie4_5", Architecture::Ernie45, "Ernie4_5ForCausalLM"),
    ("hunyuan-dense", Architecture::HunyuanDense, "HunYuanDenseV1ForCausalLM"),
    ("command-r", Architecture::CommandR, "CohereForCausalLM"),
    ("cohere2", Architecture::Cohere2, "Cohere2ForCausalLM"),
    ("starcoder2", Architecture::Starcoder2, "Starcoder2ForCausalLM"),
    ("qwen2moe", Architecture::Qwen2Moe, "Qwen2MoeForCausalLM"),
    ("qwen3moe", Architecture::Qwen3Moe, "Qwen3MoeForCausalLM"),
    ("qwen3vlmoe", Architecture::Qwen3VlMoe, "Qwen3MoeForCausalLM"),
    ("qwen35moe", Architecture::Qwen35Moe, "Qwen3_5MoeForCausalLM"),
    ("qwen3next", Architecture::Qwen3Next, "Qwen3NextForCausalLM"),
    ("gpt-oss", Architecture::GptOss, "GptOssForCausalLM"),
    ("olmoe", Architecture::Olmoe, "OlmoeForCausalLM"),
    ("granitemoe", Architecture::GraniteMoe, "GraniteMoeSharedForCausalLM"),
    ("ernie4_5-moe", Architecture::Ernie45Moe, "Ernie4_5_MoeForCausalLM"),
    ("hunyuan-moe", Architecture::HunyuanMoe, "HunYuanMoEV1ForCausalLM"),
    ("dots1", Architecture::Dots1, "Dots1ForCausalLM"),
    ("glm4moe", Architecture::Glm4Moe, "Glm4MoeForCausalLM"),
    ("minimax-m2", Architecture::MiniMaxM2, "MiniMaxM2ForCausalLM"),
    ("minicpm", Architecture::MiniCpm, "MiniCPMForCausalLM"),
    ("minicpm3", Architecture::MiniCpm3, "MiniCPM3ForCausalLM"),
    ("deepseek2", Architecture::Deepseek2, "DeepseekV2ForCausalLM"),
    ("deepseek32", Architecture::Deepseek32, "DeepseekV32ForCausalLM"),
    ("glm-dsa", Architecture::GlmDsa, "GlmMoeDsaForCausalLM"),
    ("lfm2", Architecture::Lfm2, "Lfm2ForCausalLM"),
    ("lfm2moe", Architecture::Lfm2Moe, "Lfm2MoeForCausalLM"),
    (
        "granitehybrid",
        Architecture::GraniteHybrid,
        "GraniteMoeHybridForCausalLM",
    ),
    ("falcon-h1", Architecture::FalconH1, "FalconH1ForCausalLM"),
    ("mamba2", Architecture::Mamba2, "Mamba2ForCausalLM"),
    ("nemotron_h", Architecture::NemotronH, "NemotronHForCausalLM"),
    ("nemotron_h_moe", Architecture::NemotronHMoe, "NemotronHForCausalLM"),
    ("llama4", Architecture::Llama4, "Llama4ForCausalLM"),
    ("afmoe", Architecture::Afmoe, "AfmoeForCausalLM"),
    ("cohere2moe", Architecture::Cohere2Moe, "Cohere2MoeForCausalLM"),
    ("exaone-moe", Architecture::ExaoneMoe, "ExaoneMoeForCausalLM"),
    ("hy_v3", Architecture::HyV3, "HYV3ForCausalLM"),
    ("gemma4", Architecture::Gemma4, "Gemma4ForCausalLM"),
    ("muse-glimmer", Architecture::MuseGlimmer, "MuseGlimmerForCausalLM"),
    ("olmo", Architecture::Olmo, "OlmoForCausalLM"),
    ("stablelm", Architecture::StableLm, "StableLmForCausalLM"),
    ("granite_swa", Architecture::GraniteSwa, "GraniteSWAForCausalLM"),
    ("apertus", Architecture::Apertus, "ApertusForCausalLM"),
    ("chatglm", Architecture::ChatGlm, "GlmForCausalLM"),
    ("exaone", Architecture::Exaone, "LlamaForCausalLM"),
    ("falcon", Architecture::Falcon, "FalconForCausalLM"),
    ("gptneox", Architecture::GptNeoX, "GPTNeoXForCausalLM"),
    ("gpt2", Architecture::Gpt2, "GPT2LMHeadModel"),
    ("starcoder", Architecture::StarCoder, "GPTBigCodeForCausalLM"),
    ("paddleocr", Architecture::PaddleOcr, "PaddleOCRTextModel"),
    ("hunyuan_vl", Architecture::HunyuanVl, "HunYuanDenseV1ForCausalLM"),
    ("mellum", Architecture::Mellum, "MellumForCausalLM"),
    ("mistral4", Architecture::Mistral4, "Mistral4ForCausalLM"),
    ("laguna", Architecture::Laguna, "LagunaForCausalLM"),
    ("gemma3n", Architecture::Gemma3n, "Gemma3nForCausalLM"),
    ("phimoe", Architecture::PhiMoe, "PhimoeForCausalLM"),
    ("kimi-linear", Architecture::KimiLinear, "KimiLinearForCausalLM"),
    ("qwen4exp", Architecture::Qwen4Exp, "Qwen4ExpForCausalLM"),
    // RoBERTa and XLM-R are here too, because files leave out the unused rows of their position table.
    ("bert", Architecture::Bert, "BertModel"),
];

/// Classes of config.json whose files have another class's architecture.
const ALIASES: &[(&str, Architecture)] = &[("MistralForCausalLM", Architecture::Llama)];

/// Architectures whose folders can be written as GGUF: all their settings follow from one key each, the rotation and
/// the window.
const WRITTEN: &[Architecture] = &[
    Architecture::Llama,
    Architecture::Qwen2,
    Architecture::Qwen3,
    Architecture::Phi3,
    Architecture::Gemma,
    Architecture::Gemma2,
    Architecture::Gemma3,
    Architecture::SmolLm3,
];

/// The GGUF architecture for a folder of this class, if it can be written.
pub(super) fn written_architecture(class: &str) -> Option<Architecture> {
    let rows = ARCHITECTURES
        .iter()
        .map(|(_, architecture, class)| (*class, *architecture));
    let mut rows = rows
        .filter(|(_, architecture)| WRITTEN.contains(architecture))
        .chain(ALIASES.iter().copied());
    rows.find(|(known, _)| *known == class)
        .map(|(_, architecture)| architecture)
}

/// The classes of folders that can be written as GGUF.
pub(super) fn written_classes() -> Vec<&'static str> {
    let rows = ARCHITECTURES
        .iter()
        .filter(|(_, architecture, _)| WRITTEN.contains(architecture));
    rows.map(|(.., class)| *class)
        .chain(ALIASES.iter().map(|(class, _)| *class))
        .collect()
}

/// The architecture a file names.
pub(super) fn architecture(header: &Header<'_>) -> Result<Architecture, ModelError> {
    let Some(found) = header.text("general.architecture")? else {
        return Err(ModelError::CorruptWeights {
            path: header.path.to_owned(),
            problem: "general.architecture is missing".into(),
        });
    };
    match ARCHITECTURES.iter().find(|(name, ..)| *name == found) {
        Some((_, architecture, _)) => Ok(*architecture),
        None => Err(ModelError::UnknownArchitecture {
            found: found.to_owned(),
            known: ARCHITECTURES.iter().map(|(name, ..)| *name).collect(),
        }),
    }
}

impl Architecture {
    /// The prefix of the architecture's keys.
    pub(super) fn prefix(self) -> &'static str {
        self.row().0
    }

    /// True if GGUF files of the architecture store rotated pairs adjacently, unlike folders.
    pub(super) fn interleaves(self) -> bool {
        matches!(
            self,
            Architecture::Llama
                | Architecture::Mistral3
                | Architecture::SmolLm3
                | Architecture::Granite
                | Architecture::GraniteHybrid
                | Architecture::GraniteSwa
                | Architecture::Arcee
                | Architecture::GraniteMoe
                | Architecture::MiniCpm
                | Architecture::MuseGlimmer
                | Architecture::Olmo
        )
    }

    /// True if most layers of the architecture are recurrent.
    pub(super) fn is_hybrid(self) -> bool {
        matches!(
            self,
            Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next | Architecture::Qwen4Exp
        )
    }

    /// True if expert weights are divided by their sum without a setting in the file.
    pub(super) fn divides_weights(self) -> bool {
        matches!(
            self,
            Architecture::Qwen3Moe
                | Architecture::Qwen3VlMoe
                | Architecture::Qwen35Moe
                | Architecture::Qwen3Next
                | Architecture::Lfm2Moe
                | Architecture::Mellum
                | Architecture::KimiLinear
                | Architecture::Qwen4Exp
        )
    }

    /// The family's name for the part of a layer that chooses experts.
    pub(super) fn router(self) -> &'static str {
        match self {
            Architecture::Gemma4 => "router.proj",
            _ => "mlp.gate",
        }
    }

    /// The family's name for the experts of a layer.
    pub(super) fn experts(self) -> &'static str {
        match self {
            Architecture::Gemma4 => "experts",
            _ => "mlp.experts",
        }
    }

    /// True if attention of the architecture is latent, with different key and value widths.
    pub(super) fn is_latent(self) -> bool {
        matches!(
            self,
            Architecture::MiniCpm3 | Architecture::Deepseek2 | Architecture::Mistral4 | Architecture::KimiLinear
        ) || self.has_indexers()
    }

    /// True if layers of the architecture read an indexer's selection.
    pub(super) fn has_indexers(self) -> bool {
        matches!(self, Architecture::Deepseek32 | Architecture::GlmDsa)
    }

    /// True if files of the architecture give the window of layers.
    pub(super) fn slides(self) -> bool {
        matches!(
            self,
            Architecture::Gemma2
                | Architecture::Gemma3
                | Architecture::GemmaEmbedding
                | Architecture::Phi3
                | Architecture::Olmo2
                | Architecture::Exaone4
                | Architecture::Cohere2
                | Architecture::Cohere2Moe
                | Architecture::Afmoe
                | Architecture::ExaoneMoe
                | Architecture::GptOss
                | Architecture::GraniteSwa
                | Architecture::Gemma4
                | Architecture::MuseGlimmer
                | Architecture::Mellum
                | Architecture::Laguna
                | Architecture::Gemma3n
                | Architecture::PhiMoe
        )
    }

    /// Name in the file, architecture, name in config.json.
    pub(super) fn row(self) -> &'static (&'static str, Architecture, &'static str) {
        let row = ARCHITECTURES.iter().find(|(_, known, _)| *known == self);
        row.expect("every architecture has a row")
    }
}
