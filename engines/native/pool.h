// A few threads that share out the items of one piece of work.
//
// Items are claimed one by one, not dealt out beforehand: a thread that the system has taken off
// its core delays the item it holds, and nobody else's. Each thread begins with a share of its own,
// from its first item on, since memory that is read in order comes sooner; one that is through takes
// from the ends of others' shares. A piece has ended when its items have: nobody waits for a thread
// that sleeps or was not let run in time to claim one. Waiting spins for some microseconds and then
// sleeps, so that a neighbour on the same cores gets its turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace bulkhead {

class Pool {
 public:
  explicit Pool(int num_threads);  // the calling thread of `run` is one of them
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(item, thread) once for each item of 0..num_items-1, from any thread, and returns
  // when all have ended. A `body` that throws ends the process. One caller at a time.
  template <class Body>
  void run(int num_items, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    const Work work = [](void* closure, int item, int thread) noexcept {
      (*static_cast<Plain*>(closure))(item, thread);
    };
    void* closure = const_cast<void*>(static_cast<const void*>(std::addressof(body)));
    if (threads_.empty() || num_items <= 1) {
      for (int item = 0; item < num_items; ++item) work(closure, item, 0);
      return;
    }
    work_ = work;
    closure_ = closure;
    share_out(num_items);
  }

 private:
  using Work = void (*)(void* closure, int item, int thread) noexcept;

  // What nobody has claimed of a thread's share: the round, the first item, the item after the
  // last. In one word, so that who comes late, with an older round in hand, can't claim from a newer
  // one.
  struct alignas(64) Share {
    std::atomic<uint64_t> unclaimed{0};
  };
  enum class End { first, last };

  void share_out(int num_items);
  void share_out_few(int num_items);
  void serve(int thread);
  int claim_all(int thread);
  bool claim_one(int thread, int& item);
  static bool claim(Share& share, End end, int& item);

  // Of the piece at hand. Only a thread that holds one of its items may read them: until that item
  // has ended they stay as they are.
  Work work_ = nullptr;
  void* closure_ = nullptr;
  int first_item_ = 0;  // of this round: many items take several

  std::vector<Share> shares_;  // by thread
  alignas(64) std::atomic<int> num_running_{0};  // items of this round that have not ended
  alignas(64) std::atomic<uint32_t> round_{0};   // rises with each piece; threads sleep on it
  std::atomic<bool> is_closing_{false};
  std::vector<std::thread> threads_;
};

}  // namespace bulkhead
