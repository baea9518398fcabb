#include "pool.h"

#include <algorithm>
#include <chrono>

#ifdef BULKHEAD_X86
#include <immintrin.h>
#endif

namespace bulkhead {
namespace {

// Longer than from one piece of a step to the next, and short beside a turn on a core: a thread
// that has nothing to do then gives its core to a neighbour.
constexpr std::chrono::microseconds SPIN{30};
constexpr int PAUSES = 16;  // from one look at the clock to the next

constexpr int MOST_ITEMS = 0xffff;  // of a round: a share's ends take 16 bits each
constexpr int ROUND = 32, FIRST = 16;  // where they lie in its word

void pause() {
#ifdef BULKHEAD_X86
  _mm_pause();
#endif
}

// Until `value` is another than `old`: spins, then sleeps in the kernel.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  const auto end = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < PAUSES; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

Pool::Pool(int num_threads) : shares_(std::max(num_threads, 1)) {
  for (int thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread] { serve(thread); });
}

Pool::~Pool() {
  is_closing_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::share_out(int num_items) {
  for (first_item_ = 0; first_item_ < num_items; first_item_ += MOST_ITEMS)
    share_out_few(std::min(num_items - first_item_, MOST_ITEMS));
}

void Pool::share_out_few(int num_items) {
  const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  num_running_.store(num_items, std::memory_order_relaxed);
  const uint64_t items = num_items, threads = shares_.size();
  for (uint64_t thread = 0; thread < threads; ++thread) {
    const uint64_t first = items * thread / threads, end = items * (thread + 1) / threads;
    shares_[thread].unclaimed.store(uint64_t{round} << ROUND | first << FIRST | end,
                                    std::memory_order_release);
  }
  round_.store(round, std::memory_order_release);
  round_.notify_all();
  num_running_.fetch_sub(claim_all(0), std::memory_order_acquire);
  for (int left; (left = num_running_.load(std::memory_order_acquire)) != 0;)
    wait_while(num_running_, left);
}

void Pool::serve(int thread) {
  for (uint32_t seen = 0;;) {
    wait_while(round_, seen);
    seen = round_.load(std::memory_order_acquire);  // before the look for items: none is missed
    if (is_closing_.load(std::memory_order_relaxed)) return;
    claim_all(thread);
  }
}

// Works until no item is left to claim. Returns how many items it did that aren't yet counted as
// ended: the caller's own, which nobody waits for. Of another thread's each is counted at once,
// since the system may take it off its core before the next.
int Pool::claim_all(int thread) {
  int uncounted = 0;
  for (int item; claim_one(thread, item);) {
    work_(closure_, first_item_ + item, thread);
    if (thread == 0)
      ++uncounted;
    else if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      num_running_.notify_one();
  }
  return uncounted;
}

bool Pool::claim_one(int thread, int& item) {
  if (claim(shares_[thread], End::first, item)) return true;
  for (size_t next = 1; next < shares_.size(); ++next)
    if (claim(shares_[(thread + next) % shares_.size()], End::last, item)) return true;
  return false;
}

bool Pool::claim(Share& share, End end, int& item) {
  uint64_t seen = share.unclaimed.load(std::memory_order_acquire), left;
  do {
    const int first = seen >> FIRST & MOST_ITEMS, last = static_cast<int>(seen & MOST_ITEMS) - 1;
    if (first > last) return false;
    item = end == End::first ? first : last;
    left = end == End::first ? seen + (uint64_t{1} << FIRST) : seen - 1;
  } while (!share.unclaimed.compare_exchange_weak(seen, left, std::memory_order_acq_rel,
                                                  std::memory_order_acquire));
  return true;
}

}  // namespace bulkhead
