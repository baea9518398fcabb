#ifdef BULKHEAD_X86

#include "check_lanes.h"

namespace bulkhead {

bool right_pages_avx2(const Ledger& ledger, const int64_t* pages, const uint64_t* expected,
                      int64_t count, int64_t domain) {
  return right_pages_lanes(ledger, pages, expected, count, domain);
}

}  // namespace bulkhead

#endif
