#include "pool.h"

#ifdef BULKHEAD_X86
#include <immintrin.h>
#endif

namespace bulkhead {
namespace {

constexpr int SPINS = 4000;  // some tens of microseconds: longer than between two pieces of a step

void pause() {
#ifdef BULKHEAD_X86
  _mm_pause();
#endif
}

// Until `value` is another than `old`: spins, then sleeps in the kernel.
template <class T>
void wait_while(std::atomic<T>& value, T old) {
  for (int spin = 0; spin < SPINS; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

Pool::Pool(int num_threads) {
  for (int thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread] { serve(thread); });
}

Pool::~Pool() {
  is_closing_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::share_out(int num_items) {
  num_items_ = num_items;
  next_item_.store(0, std::memory_order_relaxed);
  num_busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  claim(0);
  for (int busy; (busy = num_busy_.load(std::memory_order_acquire)) != 0;)
    wait_while(num_busy_, busy);
}

void Pool::serve(int thread) {
  for (uint32_t seen = 0;;) {
    wait_while(round_, seen);
    seen = round_.load(std::memory_order_acquire);
    if (is_closing_.load()) return;
    claim(thread);
    if (num_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_busy_.notify_one();
  }
}

void Pool::claim(int thread) {
  for (int item; (item = next_item_.fetch_add(1, std::memory_order_relaxed)) < num_items_;)
    work_(closure_, item, thread);
}

}  // namespace bulkhead
