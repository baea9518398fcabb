#include "forward.h"

#include <algorithm>

#include "linear_layout.h"

namespace bulkhead {
namespace {

constexpr int TOKENS = 8;        // that a thread takes at a time: fewer aren't worth its waking
constexpr int ROWS = 64;         // of gate and up, at a time: what is beside them stays in the cache
constexpr int HEAD_ROWS = 64;    // tokens whose logits are computed at a time
constexpr int MOST_BLOCKS = 32;  // of a product, at a time
constexpr int TILE_BLOCKS = 4;   // that products take at once, at most

int ceil_of(int number, int divisor) { return (number + divisor - 1) / divisor; }

// Rows first..first+count-1 of W as a matrix of their own; `first` is a multiple of BLOCK.
Matrix part_of(const Matrix& w, int first, int count) {
  Matrix part = w;
  part.n = count;
  part.data += first / BLOCK * block_bytes(w.weights, w.k, w.group);
  return part;
}

void add(const float* from, int size, float* to) {
  for (int i = 0; i < size; ++i) to[i] += from[i];
}

}  // namespace

Forward::Forward(const Model& model, const KvPool& pages, Isa isa, int num_threads)
    : model_(model),
      pages_(pages),
      rows_(row_kernels(isa)),
      attention_(attention_kernels(isa)),
      pool_(num_threads) {}

void Forward::run(const StepArrays& step, const Wanted& wanted) {
  const Shape& shape = model_.shape;
  plan_.make(step, pages_, shape.heads, shape.vocab, shape.max_context, pool_.num_threads());
  num_tokens_ = static_cast<int>(step.num_tokens);
  reserve(num_tokens_, wanted);
  embed(step);
  for (int index = 0; index < static_cast<int>(model_.layers.size()); ++index) {
    const Layer& layer = model_.layers[index];
    normalise(layer.attention_norm, layer.qkv);
    project_qkv(step, index);
    attend(index);
    project_output(layer);
    normalise(layer.mlp_norm, layer.gate_up);
    gate_up(layer);
    down(layer);
  }
  head(wanted);
}

template <class Body>
void Forward::each_token(int num_tokens, Body&& body) {
  pool_.run(ceil_of(num_tokens, TOKENS), [&](int item, int thread) {
    const int last = std::min(num_tokens, (item + 1) * TOKENS);
    for (int token = item * TOKENS; token < last; ++token) body(token, thread);
  });
}

void Forward::reserve(int num_tokens, const Wanted& wanted) {
  const Shape& shape = model_.shape;
  const size_t tokens = num_tokens, threads = pool_.num_threads();
  x_.reserve(tokens * shape.hidden);
  normed_.reserve(threads * shape.hidden);
  qkv_.reserve(tokens * shape.qkv_size());
  mixed_.reserve(tokens * shape.q_size());
  gates_.reserve(threads * ROWS * 2 * GATE_ROWS);
  scratch_.reserve(threads * attention_scratch(pages_, shape.heads));
  partials_.reserve(plan_.num_partials() * partial_floats(pages_, shape.heads));
  of_head_.reserve(HEAD_ROWS, shape.hidden, model_.head.input);
  const int num_forgotten = std::min(HEAD_ROWS, wanted.num_tokens - wanted.num_kept);
  logits_.reserve(static_cast<size_t>(num_forgotten) * shape.vocab);
}

void Forward::embed(const StepArrays& step) {
  const int hidden = model_.shape.hidden;
  each_token(num_tokens_, [&](int token, int) {
    const uint16_t* from = model_.embedding + step.input_ids[token] * hidden;
    float* to = x_.data() + static_cast<size_t>(token) * hidden;
    for (int i = 0; i < hidden; ++i) to[i] = float_of_bf16(from[i]);
  });
}

// x, normalised, as the layer `into` takes it.
void Forward::normalise(const float* weights, const Linear& into) {
  const int hidden = model_.shape.hidden;
  of_hidden_.reserve(num_tokens_, hidden, into.input);
  each_token(num_tokens_, [&](int token, int thread) {
    float* normed = normed_.data() + static_cast<size_t>(thread) * hidden;
    const float* x = x_.data() + static_cast<size_t>(token) * hidden;
    rows_.rms_norm(x, weights, model_.shape.eps, hidden, normed);
    of_hidden_.fill(rows_, token, normed, into.factors, 0, hidden);
  });
}

void Forward::project_qkv(const StepArrays& step, int layer) {
  linear(model_.layers[layer].qkv, of_hidden_, num_tokens_, qkv_.data(), false);
  each_token(num_tokens_, [&](int token, int) { finish_qkv(step, layer, token); });
}

// Bias, norms and turns of one token's q, k and v; K and V into their page.
void Forward::finish_qkv(const StepArrays& step, int index, int token) {
  const Shape& shape = model_.shape;
  const Layer& layer = model_.layers[index];
  const int dim = shape.head_dim;
  float* q = qkv_.data() + static_cast<size_t>(token) * shape.qkv_size();
  float *k = q + shape.q_size(), *v = k + shape.kv_size();
  if (layer.qkv.bias) add(layer.qkv.bias, shape.qkv_size(), q);
  if (layer.q_norm) {
    for (float* head = q; head < k; head += dim)
      rows_.rms_norm(head, layer.q_norm, shape.eps, dim, head);
    for (float* head = k; head < v; head += dim)
      rows_.rms_norm(head, layer.k_norm, shape.eps, dim, head);
  }
  const int64_t turn = step.positions[token] * (dim / 2);
  rows_.rope(q, shape.heads + shape.kv_heads, dim, model_.cos + turn, model_.sin + turn);
  attention_.store(pages_, index, step.slot_mapping[token], k, v);
}

void Forward::attend(int layer) {
  const size_t bytes = attention_scratch(pages_, model_.shape.heads);
  const auto& pieces = plan_.pieces();
  pool_.run(static_cast<int>(pieces.size()), [&](int item, int thread) {
    attend_piece(layer, pieces[item], scratch_.data() + thread * bytes);
  });
  for (const AttentionMerge& one : plan_.merges()) merge(layer, one);
}

void Forward::attend_piece(int layer, const AttentionPiece& piece, std::byte* scratch) {
  const Shape& shape = model_.shape;
  const AttentionRow& row = plan_.row(piece.row);
  const size_t token = plan_.first_token(piece.row);
  const float* q = qkv_.data() + token * shape.qkv_size();
  if (piece.segment < 0) {
    attention_.attend(pages_, layer, piece.kv_head, row, piece.first, piece.last, q, shape.heads,
                      shape.qkv_size(), mixed_.data() + token * shape.q_size(), shape.q_size(),
                      scratch);
    return;
  }
  float* partial = partials_.data() + piece.partial * partial_floats(pages_, shape.heads);
  attention_.attend_segment(pages_, layer, piece.kv_head, row, 0, piece.segment, q, shape.heads,
                            partial, scratch);
}

void Forward::merge(int layer, const AttentionMerge& one) {
  const Shape& shape = model_.shape;
  float* partials = partials_.data() + one.partial * partial_floats(pages_, shape.heads);
  const size_t token = plan_.first_token(one.row);
  attention_.merge(pages_, layer, one.kv_head, one.segments, partials, shape.heads,
                   mixed_.data() + token * shape.q_size());
}

void Forward::project_output(const Layer& layer) {
  const int size = model_.shape.q_size();
  of_mixed_.reserve(num_tokens_, size, layer.output.input);
  each_token(num_tokens_, [&](int token, int) {
    const float* mixed = mixed_.data() + static_cast<size_t>(token) * size;
    of_mixed_.fill(rows_, token, mixed, layer.output.factors, 0, size);
  });
  linear(layer.output, of_mixed_, num_tokens_, x_.data(), true);
}

void Forward::gate_up(const Layer& layer) {
  const int inner = model_.shape.inner;
  of_inner_.reserve(num_tokens_, inner, layer.down.input);
  pool_.run(ceil_of(inner, GATE_ROWS), [&](int item, int thread) {
    gate_up_rows(layer, item, gates_.data() + static_cast<size_t>(thread) * ROWS * 2 * GATE_ROWS);
  });
}

// Some outputs of gate and up for all tokens, through SwiGLU, as `down` takes them.
void Forward::gate_up_rows(const Layer& layer, int item, float* scratch) {
  const int first = item * GATE_ROWS, count = std::min(GATE_ROWS, model_.shape.inner - first);
  const Matrix w = part_of(layer.gate_up.w, 2 * first, 2 * count);
  for (int token = 0; token < num_tokens_; token += ROWS) {
    const int num_rows = std::min(ROWS, num_tokens_ - token);
    layer.gate_up.product(w, 0, w.num_blocks(), of_hidden_.rows(token, num_rows), scratch, 2 * count,
                          false);
    for (int row = 0; row < num_rows; ++row) {
      float* gate = scratch + static_cast<size_t>(row) * 2 * count;
      rows_.swiglu(gate, gate + count, count, gate);
      of_inner_.fill(rows_, token + row, gate, layer.down.factors, first, count);
    }
  }
}

void Forward::down(const Layer& layer) {
  linear(layer.down, of_inner_, num_tokens_, x_.data(), true);
}

// Some tokens at a time: drafts may ask for many, whose logits together would be large.
void Forward::head(const Wanted& wanted) {
  for (int first = 0, count; first < wanted.num_tokens; first += count) {
    const bool is_kept = first < wanted.num_kept;
    count = std::min(HEAD_ROWS, (is_kept ? wanted.num_kept : wanted.num_tokens) - first);
    float* kept = wanted.logits + static_cast<size_t>(first) * model_.shape.vocab;
    score(wanted.tokens + first, count, is_kept ? kept : logits_.data(), wanted.best + first);
  }
}

void Forward::score(const int64_t* tokens, int count, float* logits, int64_t* best) {
  const int hidden = model_.shape.hidden, vocab = model_.shape.vocab;
  each_token(count, [&](int row, int thread) {
    float* normed = normed_.data() + static_cast<size_t>(thread) * hidden;
    const float* x = x_.data() + static_cast<size_t>(tokens[row]) * hidden;
    rows_.rms_norm(x, model_.norm, model_.shape.eps, hidden, normed);
    of_head_.fill(rows_, row, normed, model_.head.factors, 0, hidden);
  });
  const Matrix& w = model_.head.w;
  const int blocks = blocks_of_item(w), num_items = ceil_of(w.num_blocks(), blocks);
  const Inputs inputs = of_head_.rows(0, count);
  bests_.reserve(static_cast<size_t>(num_items) * HEAD_ROWS);
  pool_.run(num_items, [&](int item, int) {
    const int first = item * blocks, last = std::min(first + blocks, w.num_blocks());
    model_.head.product(w, first, last, inputs, logits, vocab, false);
    const int size = std::min(last * BLOCK, vocab) - first * BLOCK;
    for (int row = 0; row < count; ++row) {
      const int found =
          rows_.argmax(logits + static_cast<size_t>(row) * vocab + first * BLOCK, size);
      bests_.data()[item * HEAD_ROWS + row] = found < 0 ? -1 : first * BLOCK + found;
    }
  });
  choose(count, num_items, logits, best);
}

// The best of all, from the best of each item. One that isn't finite spoils its row.
void Forward::choose(int count, int num_items, const float* logits, int64_t* best) const {
  for (int row = 0; row < count; ++row) {
    const float* of_row = logits + static_cast<size_t>(row) * model_.shape.vocab;
    int found = bests_.data()[row];
    for (int item = 1; item < num_items && found >= 0; ++item) {
      const int other = bests_.data()[item * HEAD_ROWS + row];
      if (other < 0 || of_row[other] > of_row[found]) found = other;
    }
    best[row] = found;
  }
}

void Forward::linear(const Linear& linear, const InputRows& inputs, int num_rows, float* out,
                     bool add) {
  const Matrix& w = linear.w;
  const int blocks = blocks_of_item(w);
  const Inputs rows = inputs.rows(0, num_rows);
  pool_.run(ceil_of(w.num_blocks(), blocks), [&](int item, int) {
    const int first = item * blocks;
    linear.product(w, first, std::min(first + blocks, w.num_blocks()), rows, out, w.n, add);
  });
}

// Some pieces for each thread, so that one whose core was taken away holds up few; and as many for
// each, so that nobody waits for the last one of another.
int Forward::blocks_of_item(const Matrix& w) const {
  const int threads = pool_.num_threads();
  int blocks = std::clamp(w.num_blocks() / (4 * threads), 1, MOST_BLOCKS);
  while (blocks > 1 && ceil_of(w.num_blocks(), blocks) % threads != 0) --blocks;
  return blocks;
}

}  // namespace bulkhead
