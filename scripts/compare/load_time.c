// The part of scripts/compare/load-time that runs llama.cpp. It measures a model loaded as its own programs do, and the first token.
//
//     load_time MODEL.gguf THREADS PROMPT          prints milliseconds of each part as JSON

#include <string.h>

#define PROGRAM "load_time"
#include "llama_cpp_peer.h"

enum { CONTEXT = 4096 };

static struct llama_model *load(const char *path, bool vocabulary_only) {
    struct llama_model_params settings = llama_model_default_params();
    settings.vocab_only = vocabulary_only;
    struct llama_model *model = llama_model_load_from_file(path, settings);
    if (!model) {
        fail("llama.cpp does not load the model");
    }
    return model;
}

int main(int count, char **words) {
    if (count != 4) {
        fail("usage: load_time MODEL.gguf THREADS PROMPT");
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();

    double start = milliseconds();
    if (!strcmp(words[3], "")) {
        load(words[1], true);
        printf("{\"vocabulary_ms\": %.3f}\n", milliseconds() - start);
        return 0;
    }
    struct llama_model *model = load(words[1], false);
    double loaded = milliseconds();

    struct llama_context_params settings = llama_context_default_params();
    settings.n_ctx = CONTEXT;
    settings.n_threads = settings.n_threads_batch = atoi(words[2]);
    settings.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    struct llama_context *context = llama_init_from_model(model, settings);
    if (!context) {
        fail("llama.cpp makes no context");
    }
    double ready = milliseconds();

    const struct llama_vocab *vocabulary = llama_model_get_vocab(model);
    llama_token tokens[CONTEXT];
    int prompt = llama_tokenize(vocabulary, words[3], strlen(words[3]), tokens, CONTEXT, true, true);
    if (prompt <= 0 || llama_decode(context, llama_batch_get_one(tokens, prompt)) != 0) {
        fail("llama.cpp does not read the prompt");
    }
    const float *logits = llama_get_logits_ith(context, -1);
    int best = 0;
    for (int token = 1; token < llama_vocab_n_tokens(vocabulary); token++) {
        if (logits[token] > logits[best]) {
            best = token;
        }
    }
    printf("{\"load_ms\": %.3f, \"context_ms\": %.3f, \"first_token_ms\": %.3f, \"prompt_tokens\": %d, \"first_token\": %d}\n", loaded - start,
           ready - loaded, milliseconds() - ready, prompt, best);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
