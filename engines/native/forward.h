// One step of a model over a ragged batch: every layer, and the head for the tokens that want it.
//
// Work is shared out by blocks of outputs, by tokens, and by rows and heads. Who takes a piece and
// how the pieces are cut changes no bit: each output is summed whole, in one order.
#pragma once

#include "attention.h"
#include "input_rows.h"
#include "memory.h"
#include "model.h"
#include "pool.h"
#include "rows.h"
#include "step_arrays.h"
#include "step_plan.h"

namespace bulkhead {

// Whose next token is wanted: `best` is that of the highest logit, or -1 where they aren't finite.
// Of the first `num_kept`, `logits` holds num_kept * vocab floats; of the others they are forgotten.
struct Wanted {
  int num_tokens;
  const int64_t* tokens;  // places in the step's arrays
  int64_t* best;
  int num_kept;
  float* logits;
};

class Forward {
 public:
  Forward(const Model& model, const KvPool& pages, Isa isa, int num_threads);

  // Writes the step's K and V, then what is wanted. Throws std::out_of_range, before anything is
  // written, for a step that names what isn't there.
  void run(const StepArrays& step, const Wanted& wanted);

 private:
  template <class Body>
  void each_token(int num_tokens, Body&& body);  // body(token, thread)

  void reserve(int num_tokens, const Wanted& wanted);
  void embed(const StepArrays& step);
  void normalise(const float* weights, const Linear& into);
  void project_qkv(const StepArrays& step, int layer);
  void finish_qkv(const StepArrays& step, int layer, int token);
  void attend(int layer);
  void attend_piece(int layer, const AttentionPiece& piece, std::byte* scratch);
  void merge(int layer, const AttentionMerge& merge);
  void project_output(const Layer& layer);
  void gate_up(const Layer& layer);
  void gate_up_rows(const Layer& layer, int item, float* scratch);
  void down(const Layer& layer);
  void head(const Wanted& wanted);
  void score(const int64_t* tokens, int count, float* logits, int64_t* best);
  void choose(int count, int num_items, const float* logits, int64_t* best) const;
  void linear(const Linear& linear, const InputRows& inputs, int num_rows, float* out, bool add);
  int blocks_of_item(const Matrix& w) const;

  Model model_;
  KvPool pages_;
  const RowKernels& rows_;
  const AttentionKernels& attention_;
  Pool pool_;
  StepPlan plan_;
  int num_tokens_ = 0;

  Buffer<float> x_;         // [tokens, hidden] what the layers add to
  Buffer<float> normed_;    // [threads, hidden]
  Buffer<float> qkv_;       // [tokens, qkv_size]
  Buffer<float> mixed_;     // [tokens, q_size] what attention found
  Buffer<float> partials_;  // of contexts that threads share
  Buffer<float> gates_;     // [threads, ROWS, 2 * GATE_ROWS]
  Buffer<std::byte> scratch_;  // [threads]
  Buffer<float> logits_;       // [HEAD_ROWS, vocab] of tokens whose logits nobody keeps
  Buffer<int> bests_;          // [items of the head, HEAD_ROWS]
  InputRows of_hidden_, of_mixed_, of_inner_, of_head_;
};

}  // namespace bulkhead
