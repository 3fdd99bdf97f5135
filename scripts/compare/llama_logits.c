// Logits that llama.cpp computes of a text, for scripts/compare/family-matrix.
//
//     llama_logits MODEL.gguf TOKEN..      writes the logits of all tokens as f32 to standard output
//
// Keys and values are f32, so that the result differs from that of others by the rounding of products alone.

#define PROGRAM "llama_logits"
#include "llama_cpp_peer.h"

int main(int count, char **arguments) {
    if (count < 3) {
        fail("give a model and tokens");
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params model_params = llama_model_default_params();
    struct llama_model *model = llama_model_load_from_file(arguments[1], model_params);
    if (model == NULL) {
        fail("llama.cpp does not load the model");
    }
    int tokens = count - 2;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 2 * tokens;
    params.n_batch = params.n_ubatch = tokens;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) {
        fail("llama.cpp makes no context");
    }
    struct llama_batch batch = llama_batch_init(tokens, 0, 1);
    for (int at = 0; at < tokens; at++) {
        batch.token[at] = atoi(arguments[at + 2]);
        batch.pos[at] = at;
        batch.n_seq_id[at] = 1;
        batch.seq_id[at][0] = 0;
        batch.logits[at] = 1;
    }
    batch.n_tokens = tokens;
    if (llama_decode(context, batch) != 0) {
        fail("llama.cpp does not read the tokens");
    }
    int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int at = 0; at < tokens; at++) {
        fwrite(llama_get_logits_ith(context, at), sizeof(float), vocabulary, stdout);
    }
    return 0;
}
