// A few threads that share out the items of one piece of work.
//
// Items are claimed one by one, not dealt out beforehand: a thread that the system has taken off
// its core delays the item it holds, and nobody else's. Waiting spins for some microseconds and
// then sleeps, so that a neighbour on the same cores gets its turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace bulkhead {

class Pool {
 public:
  explicit Pool(int num_threads);  // the calling thread of `run` is one of them
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(item, thread) for each item of 0..num_items-1, from any thread, and returns when all
  // have ended. `body` must not throw. One caller at a time.
  template <class Body>
  void run(int num_items, Body&& body) {
    if (threads_.empty() || num_items <= 1) {
      for (int item = 0; item < num_items; ++item) body(item, 0);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    work_ = [](void* closure, int item, int thread) { (*static_cast<Plain*>(closure))(item, thread); };
    closure_ = const_cast<void*>(static_cast<const void*>(&body));
    share_out(num_items);
  }

 private:
  using Work = void (*)(void* closure, int item, int thread);

  void share_out(int num_items);
  void serve(int thread);
  void claim(int thread);

  Work work_ = nullptr;
  void* closure_ = nullptr;
  int num_items_ = 0;
  alignas(64) std::atomic<int> next_item_{0};
  alignas(64) std::atomic<int> num_busy_{0};     // threads that may still hold an item
  alignas(64) std::atomic<uint32_t> round_{0};   // rises with each piece of work
  std::atomic<bool> is_closing_{false};
  std::vector<std::thread> threads_;
};

}  // namespace bulkhead
