#include "pool.h"

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

Pool::Pool(int num_threads) {
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
  const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  num_items_ = num_items;
  num_running_.store(num_items, std::memory_order_relaxed);
  unclaimed_.store(uint64_t{round} << 32 | static_cast<uint32_t>(num_items),
                   std::memory_order_release);
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
  for (int item; claim_one(item);) {
    work_(closure_, item, thread);
    if (thread == 0)
      ++uncounted;
    else if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      num_running_.notify_one();
  }
  return uncounted;
}

bool Pool::claim_one(int& item) {
  uint64_t seen = unclaimed_.load(std::memory_order_acquire);
  do {
    if (static_cast<uint32_t>(seen) == 0) return false;
  } while (!unclaimed_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                             std::memory_order_acquire));
  item = num_items_ - static_cast<int>(static_cast<uint32_t>(seen));
  return true;
}

}  // namespace bulkhead
