// What the attention of one step consists of: pieces that any thread may take, the same for all
// layers.
#pragma once

#include <vector>

#include "attention.h"
#include "step_arrays.h"

namespace bulkhead {

// Queries first..last-1 of a row for one kv head; or, of its only query, one segment of its context.
struct AttentionPiece {
  int row, kv_head, first, last;
  int segment = -1;     // -1: all of the context
  int64_t partial = 0;  // which of the results of segments is its own
};

// What is left to do for a row of segments once they are computed.
struct AttentionMerge {
  int row, kv_head, segments;
  int64_t partial;  // of its first segment
};

class StepPlan {
 public:
  // Throws std::out_of_range for a step that names what isn't there: pages, positions, tokens.
  void make(const StepArrays& step, const KvPool& pool, int heads, int vocab, int max_context,
            int num_threads);

  int num_rows() const { return static_cast<int>(rows_.size()); }
  const AttentionRow& row(int index) const { return rows_[index]; }
  int first_token(int row) const { return first_tokens_[row]; }
  const std::vector<AttentionPiece>& pieces() const { return pieces_; }
  const std::vector<AttentionMerge>& merges() const { return merges_; }
  int64_t num_partials() const { return num_partials_; }

 private:
  void take_rows(const StepArrays& step, const KvPool& pool);
  void share_whole(const KvPool& pool, int row, int queries);
  void share_segments(const KvPool& pool, int row);

  std::vector<AttentionRow> rows_;
  std::vector<int> first_tokens_;
  std::vector<AttentionPiece> pieces_;
  std::vector<AttentionMerge> merges_;
  int64_t num_partials_ = 0;
};

}  // namespace bulkhead
