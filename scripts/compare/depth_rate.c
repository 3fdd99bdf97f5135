// The part of scripts/compare/depth-rate that runs llama.cpp. It measures a prompt and an answer behind a context, without reading the context.
//
//     depth_rate MODEL.gguf THREADS f16|q8_0 PROMPT_TOKENS ANSWER_TOKENS REPEATS DEPTH..     prints a line of JSON for each depth
//
// The program reads 256 random tokens once. It then fills the cache with copies of their keys and values, by llama.cpp's own
// function for saved sequences: attention takes as long over copies as over the tokens of a text.

#include <stdint.h>
#include <string.h>

#define PROGRAM "depth_rate"
#include "llama_cpp_peer.h"

enum { SAMPLE = 256, BATCH = 2048 };

static void read_tokens(struct llama_context *context, int vocabulary, int count) {
    llama_token tokens[BATCH];
    while (count > 0) {
        int part = count < BATCH ? count : BATCH;
        for (int at = 0; at < part; at++) {
            tokens[at] = rand() % vocabulary;
        }
        if (llama_decode(context, llama_batch_get_one(tokens, part)) != 0) {
            fail("llama.cpp does not read the tokens");
        }
        count -= part;
    }
    llama_synchronize(context);
}

// A saved sequence that is read from one buffer and written to another.
struct copy {
    const uint8_t *from;
    uint8_t *to;
};

static void take(struct copy *copy, void *value, size_t bytes) {
    memcpy(value, copy->from, bytes);
    copy->from += bytes;
}

static void put(struct copy *copy, const void *value, size_t bytes) {
    memcpy(copy->to, value, bytes);
    copy->to += bytes;
}

static void pass(struct copy *copy, void *value, size_t bytes) {
    take(copy, value, bytes);
    put(copy, value, bytes);
}

// Writes the saved sequence of SAMPLE tokens as one of `depth` tokens. The format is that of `llama_kv_cache::state_write`, of a
// cache of one stream without transposed values: [magic, sequence, streams, tokens, (position, 1, sequence) a token, transposed,
// layers, (type, row bytes, rows) a layer for keys, then the same for values].
static size_t lengthen(const uint8_t *saved, size_t saved_bytes, uint8_t *longer, uint32_t depth) {
    struct copy copy = {saved, longer};
    uint32_t word, layers;
    pass(&copy, &word, 4);
    pass(&copy, &word, 4);
    pass(&copy, &word, 4);
    if (word != 1) {
        fail("the cache has several streams: not known here");
    }
    take(&copy, &word, 4);
    if (word != SAMPLE) {
        fail("the saved sequence has another length than was read");
    }
    put(&copy, &depth, 4);
    copy.from += SAMPLE * 12;
    for (uint32_t at = 0; at < depth; at++) {
        uint32_t cell[3] = {at, 1, 0};
        put(&copy, cell, sizeof(cell));
    }
    pass(&copy, &word, 4);
    if (word != 0) {
        fail("values are transposed: not known here");
    }
    pass(&copy, &layers, 4);
    for (uint32_t plane = 0; plane < 2 * layers; plane++) {
        uint64_t row_bytes;
        pass(&copy, &word, 4);
        pass(&copy, &row_bytes, 8);
        for (uint32_t at = 0; at < depth; at += SAMPLE) {
            uint32_t rows = depth - at < SAMPLE ? depth - at : SAMPLE;
            put(&copy, copy.from, rows * row_bytes);
        }
        copy.from += SAMPLE * row_bytes;
    }
    if ((size_t)(copy.from - saved) != saved_bytes) {
        fail("the saved sequence has another format than is known here");
    }
    return copy.to - longer;
}

int main(int count, char **words) {
    if (count < 8) {
        fail("usage: depth_rate MODEL.gguf THREADS f16|q8_0 PROMPT_TOKENS ANSWER_TOKENS REPEATS DEPTH..");
    }
    int prompt = atoi(words[4]), answer = atoi(words[5]), repeats = atoi(words[6]), deepest = 0;
    for (int at = 7; at < count; at++) {
        deepest = atoi(words[at]) > deepest ? atoi(words[at]) : deepest;
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(words[1], llama_model_default_params());
    if (!model) {
        fail("llama.cpp does not load the model");
    }
    struct llama_context_params settings = llama_context_default_params();
    settings.n_ctx = deepest + SAMPLE + (prompt > answer ? prompt : answer);
    settings.n_batch = BATCH;
    settings.n_ubatch = 512;
    settings.n_threads = settings.n_threads_batch = atoi(words[2]);
    settings.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    settings.type_k = settings.type_v = strcmp(words[3], "q8_0") ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
    struct llama_context *context = llama_init_from_model(model, settings);
    if (!context) {
        fail("llama.cpp makes no context");
    }
    int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_memory_t memory = llama_get_memory(context);

    // The first pass of 512 tokens also warms the program up.
    read_tokens(context, vocabulary, prompt);
    llama_memory_clear(memory, true);
    read_tokens(context, vocabulary, SAMPLE);
    size_t saved_bytes = llama_state_seq_get_size(context, 0);
    uint8_t *saved = malloc(saved_bytes);
    uint8_t *longer = malloc((saved_bytes / SAMPLE + 1) * (size_t)(deepest + SAMPLE));
    if (!saved || !longer || llama_state_seq_get_data(context, saved, saved_bytes, 0) != saved_bytes) {
        fail("llama.cpp does not save the sequence");
    }
    for (int at = 7; at < count; at++) {
        int depth = atoi(words[at]);
        llama_memory_clear(memory, true);
        if (depth > 0) {
            size_t bytes = lengthen(saved, saved_bytes, longer, depth);
            if (llama_state_seq_set_data(context, longer, bytes, 0) != bytes || llama_memory_seq_pos_max(memory, 0) != depth - 1) {
                fail("llama.cpp does not take the longer sequence");
            }
        }
        double prompt_rate = 0, answer_rate = 0;
        for (int run = 0; run < repeats; run++) {
            double start = milliseconds();
            read_tokens(context, vocabulary, prompt);
            double rate = prompt * 1e3 / (milliseconds() - start);
            prompt_rate = rate > prompt_rate ? rate : prompt_rate;
            llama_memory_seq_rm(memory, 0, depth, -1);
            start = milliseconds();
            for (int token = 0; token < answer; token++) {
                read_tokens(context, vocabulary, 1);
            }
            rate = answer * 1e3 / (milliseconds() - start);
            answer_rate = rate > answer_rate ? rate : answer_rate;
            llama_memory_seq_rm(memory, 0, depth, -1);
        }
        printf("{\"depth\": %d, \"prompt\": %.3f, \"answer\": %.3f}\n", depth, prompt_rate, answer_rate);
        fflush(stdout);
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}
