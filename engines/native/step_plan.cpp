#include "step_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace bulkhead {
namespace {

constexpr int TILE = 64;  // queries times heads that a piece takes, or a little less

void require(bool holds, const char* what) {
  if (!holds) throw std::out_of_range(std::string("a step names ") + what);
}

void check_tokens(const StepArrays& step, const KvPool& pool, int vocab, int max_context) {
  const int64_t num_slots = int64_t{pool.num_pages} * pool.page_size;
  for (int64_t token = 0; token < step.num_tokens; ++token) {
    require(step.input_ids[token] >= 0 && step.input_ids[token] < vocab, "a token that is none");
    require(step.positions[token] >= 0 && step.positions[token] < max_context,
            "a position past the model's context");
    require(step.slot_mapping[token] >= 0 && step.slot_mapping[token] < num_slots,
            "a slot outside the pages");
  }
}

}  // namespace

void StepPlan::make(const StepArrays& step, const KvPool& pool, int heads, int vocab,
                    int max_context, int num_threads) {
  check_tokens(step, pool, vocab, max_context);
  take_rows(step, pool);
  pieces_.clear();
  merges_.clear();
  num_partials_ = 0;
  // Few rows are cut along their contexts, so that each thread has its share of a long one.
  const bool is_crowded = num_rows() * pool.num_kv_heads >= 4 * num_threads;
  const int queries = std::max(1, TILE / (heads / pool.num_kv_heads));
  for (int row = num_rows() - 1; row >= 0; --row) {  // prompts first: their pieces are the largest
    const bool is_cut = rows_[row].query_len == 1 && num_threads > 1 && !is_crowded &&
                        num_segments(pool, rows_[row].context_len) > 1;
    if (is_cut)
      share_segments(pool, row);
    else
      share_whole(pool, row, queries);
  }
}

void StepPlan::take_rows(const StepArrays& step, const KvPool& pool) {
  rows_.clear();
  first_tokens_.clear();
  int64_t token = 0;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t context = step.context_lens[row], length = step.query_lens[row];
    const int64_t pages = (context + pool.page_size - 1) / pool.page_size;
    require(length > 0 && length <= context && pages <= step.max_pages, "a row of another length");
    const int64_t* table = step.block_tables + row * step.max_pages;
    for (int64_t i = 0; i < pages; ++i)
      require(table[i] >= 0 && table[i] < pool.num_pages, "a page outside the pages");
    rows_.push_back({table, static_cast<int>(context), static_cast<int>(length)});
    first_tokens_.push_back(static_cast<int>(token));
    token += length;
  }
  require(token == step.num_tokens, "rows of other lengths than its tokens");
}

void StepPlan::share_whole(const KvPool& pool, int row, int queries) {
  const int length = rows_[row].query_len;
  for (int last = length; last > 0; last -= queries)
    for (int kv_head = 0; kv_head < pool.num_kv_heads; ++kv_head)
      pieces_.push_back({row, kv_head, std::max(0, last - queries), last});
}

void StepPlan::share_segments(const KvPool& pool, int row) {
  const int segments = num_segments(pool, rows_[row].context_len);
  for (int kv_head = 0; kv_head < pool.num_kv_heads; ++kv_head) {
    merges_.push_back({row, kv_head, segments, num_partials_});
    for (int segment = 0; segment < segments; ++segment)
      pieces_.push_back({row, kv_head, 0, 1, segment, num_partials_++});
  }
}

}  // namespace bulkhead
